package tunnel

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"net"
	"net/netip"
	"testing"
	"time"

	"vrdma.dev/vrdma/internal/net/overlay"
	"vrdma.dev/vrdma/internal/net/roce"
)

// The tests in this file use the kernel's sockets, over the loopback interface.

// realHost returns a host on the loopback interface.
func realHost(t testing.TB, addr string, port uint16) *testHost {
	t.Helper()
	k, err := NewKey()
	if err != nil {
		t.Fatal(err)
	}
	h := &testHost{t: t, name: "host-" + addr, addr: netip.MustParseAddr(addr), key: k, msgs: make([]roce.Message, 16)}
	for i := range h.msgs {
		h.msgs[i].Data = make([]byte, 1<<16)
	}
	if h.tun, err = Open(Options{Key: k, Addrs: []netip.Addr{h.addr}, Port: port, Log: chatter(h)}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(h.close)
	return h
}

// freePort returns a UDP port that is free at the moment.
func freePort(t testing.TB, addr string) uint16 {
	t.Helper()
	c, err := net.ListenPacket("udp", net.JoinHostPort(addr, "0"))
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	return uint16(c.LocalAddr().(*net.UDPAddr).Port)
}

// introduce makes two hosts with different ports know each other.
func introduce(t testing.TB, a, b *testHost) {
	t.Helper()
	ea, eb := a.entry(false), b.entry(false)
	ea.TunnelPort, eb.TunnelPort = a.tun.Port(), b.tun.Port()
	a.follow(ea, eb)
	b.follow(ea, eb)
	a.meet(b)
}

func TestSockets(t *testing.T) {
	a, b := realHost(t, "127.0.0.1", freePort(t, "127.0.0.1")), realHost(t, "127.0.0.2", freePort(t, "127.0.0.2"))
	introduce(t, a, b)
	r := rand.New(rand.NewPCG(1, 2))
	for _, size := range []int{1, 15, 16, 64, 1100, 1400, 4200, 8900} {
		segments := min(roce.MaxSegments, 60000/size)
		data := make([]byte, size*segments-min(size-1, 7)) // the last is shorter
		for i := range data {
			data[i] = byte(r.Uint32())
		}
		if n, err := a.tun.Send([]roce.Message{a.to(b, data, size)}); n != 1 || err != nil {
			t.Fatal(n, err)
		}
		var got []byte
		for _, d := range b.await(segments) {
			if len(d.text) > size {
				t.Fatalf("a datagram of %d bytes, want %d", len(d.text), size)
			}
			got = append(got, d.text...)
		}
		if !bytes.Equal(got, data) {
			t.Fatalf("%d datagrams of %d bytes did not arrive as they were sent", segments, size)
		}
	}
}

// TestHostileDatagrams sends garbage from a peer's address; the session survives.
func TestHostileDatagrams(t *testing.T) {
	a, b := realHost(t, "127.0.0.1", freePort(t, "127.0.0.1")), realHost(t, "127.0.0.2", freePort(t, "127.0.0.2"))
	introduce(t, a, b)
	c, err := net.DialUDP("udp", &net.UDPAddr{IP: net.IPv4(127, 0, 0, 1)}, &net.UDPAddr{IP: net.IPv4(127, 0, 0, 2), Port: int(b.tun.Port())})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	r := rand.New(rand.NewPCG(3, 4))
	for i := range 5000 {
		d := make([]byte, []int{0, 1, 4, 31, 32, 33, 64, 92, 148, 149, 1400}[r.IntN(11)])
		for j := range d {
			d[j] = byte(r.Uint32())
		}
		if len(d) >= 4 && i%4 != 0 {
			copy(d, []byte{byte(1 + r.IntN(4)), 0, 0, 0})
		}
		_, _ = c.Write(d)
		if i%100 == 0 {
			text := fmt.Sprint("still there ", i)
			a.say(b, text)
			// Some may be lost if the garbage fills the socket buffer.
			for end := time.Now().Add(time.Minute); ; time.Sleep(time.Millisecond) {
				if got := b.hear(); len(got) > 0 {
					wantHeard(t, got, a, []string{text})
					break
				}
				if time.Now().After(end) {
					t.Fatalf("nothing arrives after %d datagrams of rubbish", i)
				}
			}
		}
	}
}

func TestPortTaken(t *testing.T) {
	a := realHost(t, "127.0.0.1", freePort(t, "127.0.0.1"))
	_, err := Open(Options{Key: a.key, Addrs: []netip.Addr{a.addr}, Port: a.tun.Port()})
	if err == nil || !bytes.Contains([]byte(err.Error()), []byte("--tunnel-port")) {
		t.Errorf("%v, want what to do about it", err)
	}
}

// TestLoopNeverWaits checks that Send reports a full ring if nothing encrypts, and that moving packets allocates nothing on the
// loop.
func TestLoopNeverWaits(t *testing.T) {
	tun := &Tunnel{out: newRing(ringSlots, ringBytes), in: newRing(ringSlots, ringBytes), addrs: map[*overlay.Host]netip.AddrPort{}}
	h := &overlay.Host{Name: "b", Addrs: []netip.Addr{netip.MustParseAddr("192.0.2.2")}, Key: [32]byte{2}}
	m, err := overlay.NewMap([]overlay.Network{{VNI: 1, Name: "x/y", Encrypted: true, Members: []overlay.Member{{Addr: netip.MustParseAddr("10.0.0.1"), Host: h}}}})
	if err != nil {
		t.Fatal(err)
	}
	tun.members = m
	tun.peers.Store(&peers{})
	msgs := []roce.Message{{Data: make([]byte, 60000), Segment: 1100, Host: h}}
	for n := 0; ; n++ {
		if k, err := tun.Send(msgs); k != 1 {
			if err != roce.ErrFull || n < 30 {
				t.Fatalf("message %d: %v, want ErrFull", n, err)
			}
			break
		}
	}
	for s := tun.out.next(); s != nil; s = tun.out.next() {
		tun.out.done(s)
	}
	if n := testing.AllocsPerRun(100, func() {
		if k, err := tun.Send(msgs); k != 1 {
			t.Fatal(err)
		}
		tun.out.done(tun.out.next())
	}); n != 0 {
		t.Errorf("Send allocates %v times", n)
	}
	got := make([]roce.Message, 1)
	room := make([]byte, 1<<16)
	packets := make([][]byte, 32)
	from := netip.AddrPortFrom(overlay.TunnelAddr(h.Key), 4789)
	for i := range packets {
		packets[i] = make([]byte, 16+headers+1100)
		putHeaders(packets[i][16:], from, netip.AddrPort{}, 1100)
	}
	tun.told.Store(true)
	tun.peers.Store(&peers{self: netip.IPv6Unspecified()})
	for i := range packets {
		putHeaders(packets[i][16:], from, netip.AddrPortFrom(netip.IPv6Unspecified(), 4789), 1100)
	}
	if n := testing.AllocsPerRun(100, func() {
		if _, err := (inside{tun}).Write(packets, 16); err != nil {
			t.Fatal(err)
		}
		got[0].Data = room
		if k, err := tun.Receive(got); k != 1 || err != nil || len(got[0].Data) != 32*1100 || got[0].Segment != 1100 || got[0].Host != h {
			t.Fatal(k, err, len(got[0].Data))
		}
	}); n != 0 {
		t.Errorf("Receive allocates %v times", n)
	}
}
