package tunnel

import (
	"encoding/binary"
	"fmt"
	"net/netip"
	"testing"
	"testing/synctest"
	"time"

	"golang.zx2c4.com/wireguard/device"

	"vrdma.dev/vrdma/internal/net/overlay"
	"vrdma.dev/vrdma/internal/net/roce"
)

// TestWrongKey checks that a host with another host's address but not its key is rejected.
func TestWrongKey(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newWire()
		a, b := newHost(t, n, "192.0.2.1"), newHost(t, n, "192.0.2.2")
		defer b.close()
		join(t, a, b)
		a.meet(b)
		right := a.entry(false)
		a.close()
		// Another host has a's address now, and knows all public data.
		mallory := newHost(t, n, "192.0.2.1")
		defer mallory.close()
		mallory.name = "host-mallory"
		mallory.follow(mallory.entry(true), b.entry(false))
		for range 100 {
			mallory.say(b, "I am a")
			b.say(a, "for a only")
			time.Sleep(time.Second)
		}
		if got := b.hear(); len(got) != 0 {
			t.Fatalf("b heard %v", got)
		}
		if got := mallory.hear(); len(got) != 0 {
			t.Fatalf("mallory heard %v", got)
		}
		if c := mallory.tun.Counters(); c.Waiting == 0 || c.Sent != 0 {
			t.Errorf("mallory: %+v", c)
		}
		// It is also rejected if it claims a's key.
		mallory.tun.peers.Load().self = overlay.TunnelAddr(right.Key)
		mallory.say(b, "I am a")
		time.Sleep(time.Minute)
		if got := b.hear(); len(got) != 0 {
			t.Fatalf("b heard %v", got)
		}
	})
}

// TestWrongSource checks that a peer cannot send packets with another peer's source address.
func TestWrongSource(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newWire()
		a, b, c := newHost(t, n, "192.0.2.1"), newHost(t, n, "192.0.2.2"), newHost(t, n, "192.0.2.3")
		defer a.close()
		defer b.close()
		defer c.close()
		join(t, a, b, c)
		a.meet(b)
		c.meet(b)
		honest := *c.tun.peers.Load()
		for _, source := range []netip.Addr{a.tun.Addr(), b.tun.Addr(), netip.MustParseAddr("fd56::1"), netip.IPv6Unspecified()} {
			forged := honest
			forged.self = source
			c.tun.peers.Store(&forged)
			c.say(b, "from somebody else")
			time.Sleep(time.Second)
			if got := b.hear(); len(got) != 0 {
				t.Fatalf("b heard %v, sent by c as %v", got, source)
			}
		}
		c.tun.peers.Store(&honest)
		c.say(b, "from c")
		wantHeard(t, b.await(1), c, []string{"from c"})
	})
}

// TestStrangers checks that datagrams from unknown addresses are dropped before any computation.
func TestStrangers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newWire()
		a, b, c := newHost(t, n, "192.0.2.1"), newHost(t, n, "192.0.2.2"), newHost(t, n, "192.0.2.3")
		defer a.close()
		defer b.close()
		defer c.close()
		join(t, a, b)
		c.follow(c.entry(true), b.entry(false)) // but b does not know c
		a.meet(b)
		c.say(b, "let me in")
		time.Sleep(time.Minute)
		if got := b.hear(); len(got) != 0 {
			t.Fatalf("b heard %v", got)
		}
		if k := b.tun.Counters().Unknown; k == 0 {
			t.Error("nothing was counted")
		}
	})
}

// TestRekeyUnderLoad sends for ten minutes. Keys are replaced every two minutes, and nothing is lost.
func TestRekeyUnderLoad(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newWire()
		a, b := newHost(t, n, "192.0.2.1"), newHost(t, n, "192.0.2.2")
		defer a.close()
		defer b.close()
		join(t, a, b)
		a.meet(b)
		before := len(n.captured(device.MessageResponseType))
		var ab, ba []heard
		var saidA, saidB []string
		for i := range 10 * 60 * 20 {
			saidA, saidB = append(saidA, fmt.Sprint("a", i)), append(saidB, fmt.Sprint("b", i))
			a.say(b, saidA[i])
			b.say(a, saidB[i])
			time.Sleep(time.Second / 20)
			ab, ba = append(ab, b.hear()...), append(ba, a.hear()...)
		}
		wantHeard(t, ab, a, saidA)
		wantHeard(t, ba, b, saidB)
		if k := len(n.captured(device.MessageResponseType)) - before; k < 4 {
			t.Errorf("%d handshakes in ten minutes, want one every two", k)
		}
		noNonceTwice(t, n)
	})
}

// noNonceTwice checks that no captured session has used a nonce twice. The receiver index identifies the session.
func noNonceTwice(t *testing.T, n *wireNet) {
	t.Helper()
	type nonce struct {
		to      netip.AddrPort
		session uint32
		number  uint64
	}
	seen, sessions := map[nonce]bool{}, map[uint32]bool{}
	for _, d := range n.captured(device.MessageTransportType) {
		k := nonce{d.to, binary.LittleEndian.Uint32(d.data[4:]), binary.LittleEndian.Uint64(d.data[8:])}
		if seen[k] {
			t.Fatalf("number %d of session %08x was used twice", k.number, k.session)
		}
		seen[k], sessions[k.session] = true, true
	}
	t.Logf("%d datagrams in %d sessions", len(seen), len(sessions))
}

// TestRestart kills a daemon under traffic and restarts it with its key.
func TestRestart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newWire()
		a, b := newHost(t, n, "192.0.2.1"), newHost(t, n, "192.0.2.2")
		defer func() { a.close(); b.close() }()
		join(t, a, b)
		a.meet(b)
		for round := range 6 {
			for i := range 50 {
				a.say(b, "a")
				b.say(a, fmt.Sprint("b", round, i))
				time.Sleep(time.Millisecond)
			}
			if got := len(a.await(50)); got != 50 {
				t.Fatal(got)
			}
			b.await(50)
			old := n.captured(device.MessageTransportType)
			if round%2 == 0 { // the host with the larger key, then the other
				a, b = b, a
			}
			a.close()
			for i := range 20 { // these are lost: the host is down
				b.say(a, fmt.Sprint("lost", i))
				time.Sleep(time.Millisecond)
			}
			a.open()
			a.follow(a.entry(true), b.entry(false))
			// The peer need not wait for its timeouts.
			back := time.Now()
			for i := 0; ; i++ {
				b.say(a, "are you back?")
				time.Sleep(time.Millisecond)
				if len(a.hear()) > 0 {
					break
				}
				if time.Since(back) > time.Second {
					t.Fatal("nothing arrives a second after the restart")
				}
			}
			time.Sleep(time.Second)
			a.hear()
			// Replayed datagrams of the old session are dropped.
			for _, d := range old {
				n.mu.Lock()
				n.deliver(d)
				n.mu.Unlock()
				time.Sleep(time.Microsecond)
			}
			time.Sleep(time.Second)
			if got := append(a.hear(), b.hear()...); len(got) != 0 {
				t.Fatalf("%d datagrams of the time before the restart were delivered", len(got))
			}
		}
		noNonceTwice(t, n)
	})
}

// TestKeyRotation changes the key of a host; the others learn it from the store.
func TestKeyRotation(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newWire()
		a, b := newHost(t, n, "192.0.2.1"), newHost(t, n, "192.0.2.2")
		defer a.close()
		defer b.close()
		join(t, a, b)
		a.meet(b)
		stolen, old := a.key, a.entry(false)
		k, err := NewKey()
		if err != nil {
			t.Fatal(err)
		}
		a.key = k
		if err := a.tun.SetKey(k); err != nil {
			t.Fatal(err)
		}
		// The others reject the new key until they know it.
		a.follow(a.entry(true), b.entry(false))
		a.say(b, "too early")
		time.Sleep(time.Second)
		if got := b.hear(); len(got) != 0 {
			t.Fatalf("b heard %v", got)
		}
		b.follow(b.entry(true), a.entry(false))
		time.Sleep(10 * time.Second)
		b.hear()
		a.say(b, "it is me")
		wantHeard(t, b.await(1), a, []string{"it is me"})
		b.say(a, "so it is")
		wantHeard(t, a.await(1), b, []string{"so it is"})
		// The old key is rejected now.
		a.close()
		a.key = stolen
		a.open()
		a.follow(old, b.entry(false))
		a.say(b, "with the old key")
		time.Sleep(time.Minute)
		if got := b.hear(); len(got) != 0 {
			t.Fatalf("b heard %v", got)
		}
	})
}

// TestPeerRemoved checks that a host that leaves the map is cut off in both directions, and may come back.
func TestPeerRemoved(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newWire()
		a, b, c := newHost(t, n, "192.0.2.1"), newHost(t, n, "192.0.2.2"), newHost(t, n, "192.0.2.3")
		defer a.close()
		defer b.close()
		defer c.close()
		join(t, a, b, c)
		a.meet(b)
		a.meet(c)
		gone := a.to(b, []byte("to whom?"), 0)
		a.follow(a.entry(true), c.entry(false))
		b.say(a, "still here")
		time.Sleep(time.Second)
		if got := a.hear(); len(got) != 0 {
			t.Fatalf("a heard %v", got)
		}
		if _, err := a.tun.Send([]roce.Message{gone}); err == nil {
			t.Error("a sends to a host that is no longer there")
		}
		a.say(c, "you stay")
		wantHeard(t, c.await(1), a, []string{"you stay"})
		a.follow(a.entry(true), b.entry(false), c.entry(false))
		time.Sleep(10 * time.Second)
		a.hear()
		b.hear()
		a.say(b, "welcome back")
		wantHeard(t, b.await(1), a, []string{"welcome back"})
	})
}

// TestHostMoves changes the address of a host, but not its key.
func TestHostMoves(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newWire()
		a, b := newHost(t, n, "192.0.2.1"), newHost(t, n, "192.0.2.2")
		defer a.close()
		defer func() { b.close() }()
		join(t, a, b)
		a.meet(b)
		time.Sleep(time.Second) // WireGuard accepts a handshake only if it is newer by 17 ms
		b.close()
		b.addr = netip.MustParseAddr("192.0.2.9")
		b.open()
		join(t, a, b)
		time.Sleep(time.Second)
		a.say(b, "there you are")
		wantHeard(t, b.await(1), a, []string{"there you are"})
		b.say(a, "here")
		wantHeard(t, a.await(1), b, []string{"here"})
	})
}

// TestSilentPeer checks that packets for a host that does not answer wait, few and for a short time, and do not delay packets
// for others.
func TestSilentPeer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newWire()
		a, b, c := newHost(t, n, "192.0.2.1"), newHost(t, n, "192.0.2.2"), newHost(t, n, "192.0.2.3")
		defer a.close()
		defer func() { b.close() }()
		defer c.close()
		b.close()
		a.follow(a.entry(true), b.entry(false), c.entry(false))
		c.follow(a.entry(false), c.entry(true))
		a.meet(c)
		said := texts("c", 500)
		for i := range said {
			a.say(b, "is anybody there?")
			a.say(c, said[i])
			time.Sleep(time.Millisecond)
		}
		wantHeard(t, c.await(len(said)), a, said)
		if got := a.tun.Counters().Waiting; got != 500-waitingMost {
			t.Errorf("%d packets for a silent host were dropped, want all but %d", got, waitingMost)
		}
		time.Sleep(10 * time.Second)
		if got := a.tun.Counters().Waiting; got != 500 {
			t.Errorf("after ten seconds %d were dropped, want 500", got)
		}
		for range 100 { // WireGuard gives up after 90 s, and retries when there is a packet
			a.say(b, "now?")
			time.Sleep(3 * time.Second)
		}
		b.open()
		b.follow(a.entry(false), b.entry(true))
		a.say(b, "at last")
		for end := time.Now().Add(time.Minute); ; time.Sleep(time.Millisecond) {
			if got := b.hear(); len(got) > 0 && got[len(got)-1].text == "at last" {
				break
			}
			if time.Now().After(end) {
				t.Fatal("nothing arrives")
			}
		}
	})
}

// TestSessionDies checks a host that disappears without a message.
func TestSessionDies(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newWire()
		a, b, c := newHost(t, n, "192.0.2.1"), newHost(t, n, "192.0.2.2"), newHost(t, n, "192.0.2.3")
		defer a.close()
		defer c.close()
		join(t, a, b, c)
		a.meet(b)
		a.meet(c)
		b.close()
		// 200 s later the keys have expired, and packets begin to wait.
		sent, got := 0, 0
		for range 2500 {
			for range 5 {
				a.say(b, "hello?")
			}
			a.say(c, "c")
			sent++
			time.Sleep(100 * time.Millisecond)
			got += len(c.hear())
		}
		if got != sent {
			t.Errorf("%d of %d packets reached the host that is there", got, sent)
		}
		if k := a.tun.Counters().Waiting; k == 0 {
			t.Error("no packet has waited: this test shows nothing")
		}
	})
}
