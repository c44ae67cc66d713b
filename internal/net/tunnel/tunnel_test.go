package tunnel

import (
	"bytes"
	"math/rand/v2"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"vrdma.dev/vrdma/internal/net/roce"
)

// The tests in this file run in virtual time over an underlay in memory: WireGuard's timers of minutes take no real time.

func TestExchange(t *testing.T) {
	for _, addrs := range [][2]string{{"192.0.2.1", "192.0.2.2"}, {"2001:db8::1", "2001:db8::2"}} {
		synctest.Test(t, func(t *testing.T) {
			n := newWire()
			a, b := newHost(t, n, addrs[0]), newHost(t, n, addrs[1])
			defer a.close()
			defer b.close()
			join(t, a, b)
			a.meet(b)
			ab, ba := texts("a to b", 300), texts("b to a", 200)
			// As the loop sends: many datagrams in a message.
			one := []byte(strings.Join(ab, ""))
			if k, err := a.tun.Send([]roce.Message{a.to(b, one[:len(ab[0])*100], len(ab[0])), a.to(b, one[len(ab[0])*100:], len(ab[0]))}); k != 2 || err != nil {
				t.Fatal(k, err)
			}
			for _, s := range ba {
				b.say(a, s)
				time.Sleep(time.Millisecond)
			}
			got := b.await(len(ab))
			for i := range got {
				if got[i].text != ab[i] {
					t.Fatalf("datagram %d is %q, want %q", i, got[i].text, ab[i])
				}
			}
			wantHeard(t, got, a, ab)
			wantHeard(t, a.await(len(ba)), b, ba)
			for _, d := range n.captured(0) {
				if bytes.Contains(d.data, []byte("clear")) {
					t.Fatal("a datagram left in the clear")
				}
			}
			if c := a.tun.Counters(); c.Sent != 301 || c.Received != 200 || c.Unknown+c.NoPeer+c.Waiting+c.Malformed+c.ReceiveFull != 0 {
				t.Errorf("%+v", c)
			}
		})
	}
}

func TestDescriptorWakesTheLoop(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newWire()
		a, b := newHost(t, n, "192.0.2.1"), newHost(t, n, "192.0.2.2")
		defer a.close()
		defer b.close()
		join(t, a, b)
		for range 3 {
			if b.readable() {
				t.Fatal("readable, and nothing was sent")
			}
			a.say(b, "hello")
			time.Sleep(time.Second)
			if !b.readable() {
				t.Fatal("not readable, and a datagram waits")
			}
			if got := b.hear(); len(got) != 1 {
				t.Fatalf("heard %v", got)
			}
		}
	})
}

func TestReplay(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newWire()
		a, b := newHost(t, n, "192.0.2.1"), newHost(t, n, "192.0.2.2")
		defer a.close()
		defer b.close()
		join(t, a, b)
		a.meet(b)
		said := texts("once", 100)
		for _, s := range said {
			a.say(b, s)
		}
		wantHeard(t, b.await(len(said)), a, said)
		// Replay everything: the handshake and the encrypted packets; later once more.
		for range 3 {
			for _, d := range n.captured(0) {
				n.mu.Lock()
				n.deliver(d)
				n.mu.Unlock()
				time.Sleep(time.Millisecond)
			}
			time.Sleep(time.Minute)
			if got := b.hear(); len(got) != 0 {
				t.Fatalf("%d datagrams were delivered twice", len(got))
			}
			if got := a.hear(); len(got) != 0 {
				t.Fatalf("the sender heard %v", got)
			}
		}
		a.say(b, "still there")
		wantHeard(t, b.await(1), a, []string{"still there"})
	})
}

func TestReorderAndDuplicates(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newWire()
		a, b := newHost(t, n, "192.0.2.1"), newHost(t, n, "192.0.2.2")
		defer a.close()
		defer b.close()
		join(t, a, b)
		a.meet(b)
		r := rand.New(rand.NewPCG(1, 2))
		var held []datagram
		n.mu.Lock()
		n.way = func(d datagram) []datagram {
			held = append(held, d, d)
			if len(held) < 400 {
				return nil
			}
			r.Shuffle(len(held), func(i, j int) { held[i], held[j] = held[j], held[i] })
			out := held
			held = nil
			return out
		}
		n.mu.Unlock()
		said := texts("any order", 2000)
		var got []heard
		for i, s := range said {
			a.say(b, s)
			if i%100 == 0 {
				time.Sleep(time.Millisecond)
				got = append(got, b.hear()...)
			}
		}
		synctest.Wait()
		n.mu.Lock()
		n.way = nil
		n.deliver(held...)
		n.mu.Unlock()
		wantHeard(t, append(got, b.await(len(said)-len(got))...), a, said)
		time.Sleep(time.Second)
		if more := b.hear(); len(more) != 0 {
			t.Fatalf("%d datagrams too many", len(more))
		}
	})
}
