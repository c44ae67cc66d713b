package roce

import (
	"bytes"
	"testing"

	"vrdma.dev/vrdma/internal/device/memory"
	"vrdma.dev/vrdma/internal/device/transport"
)

// TestRunsGoOn checks that consecutive packets of equal length share a message, in which the last may be shorter.
func TestRunsGoOn(t *testing.T) {
	type send struct {
		kind transport.Kind
		dst  uint32
		n    int
	}
	write := func(n int) send { return send{transport.KindWrite, 7, n} }
	ack := send{transport.KindAck, 7, 0}
	many := func(n int, s send) (all []send) {
		for range n {
			all = append(all, s)
		}
		return all
	}
	for _, c := range []struct {
		name    string
		o       FakeOptions
		sends   []send
		packets []int // packets of each message
	}{
		{"small messages", FakeOptions{}, many(5, write(8)), []int{5}},
		{"more than one message holds", FakeOptions{}, many(MaxSegments+3, write(8)), []int{MaxSegments, 3}},
		{"one by one", FakeOptions{Segments: 1}, many(3, write(8)), []int{1, 1, 1}},
		{"an acknowledgement behind a request", FakeOptions{}, []send{write(64), ack}, []int{2}},
		{"behind a shorter one nothing", FakeOptions{}, []send{write(64), ack, write(64), write(64)}, []int{2, 2}},
		{"a longer one begins anew", FakeOptions{}, []send{ack, write(8), write(64)}, []int{1, 1, 1}},
		{"a long message behind a short one", FakeOptions{}, []send{write(8), write(3000)}, []int{1, 2, 1}},
		{"another destination", FakeOptions{}, []send{write(8), {transport.KindWrite, 8, 8}}, []int{1, 1}},
		{"more bytes than one message holds", FakeOptions{}, many(70, write(1024)), []int{62, 8}},
	} {
		t.Run(c.name, func(t *testing.T) {
			_, a, b := pair(c.o)
			var want [][]byte
			for i, s := range c.sends {
				var span memory.Span
				x := simpleBurst(&span, s.kind, s.n)
				x.Dst, x.PSN = s.dst, uint32(100*i)
				if s.kind == transport.KindAck {
					x.Data = nil
				} else {
					span.Pieces()[0].Mem[0] = byte(i)
					want = append(want, bytes.Clone(span.Pieces()[0].Mem))
				}
				if err := carry(a, x); err != nil {
					t.Fatal(err)
				}
			}
			var packets []int
			for i := range a.queue {
				packets = append(packets, int(packetsIn(&a.queue[i])))
			}
			if len(packets) != len(c.packets) {
				t.Fatalf("messages of %v packets, want %v", packets, c.packets)
			}
			for i := range packets {
				if packets[i] != c.packets[i] {
					t.Fatalf("messages of %v packets, want %v", packets, c.packets)
				}
			}
			a.Flush()
			s := &sink{t: t}
			drain(b, s)
			if b.Counters().BadICRC != 0 || len(s.bursts) != len(c.sends) {
				t.Fatalf("%d bursts arrived of %d, %+v", len(s.bursts), len(c.sends), b.Counters())
			}
			data := 0
			for i := range s.bursts {
				if s.bursts[i].PSN != uint32(100*i) {
					t.Errorf("burst %d has PSN %d", i, s.bursts[i].PSN)
				}
				if carriesData(s.bursts[i].Kind) {
					if !bytes.Equal(s.data[i], want[data]) {
						t.Errorf("burst %d: bytes differ", i)
					}
					data++
				}
			}
		})
	}
}

// TestReady checks that a port with full sockets is not ready when half of its queue is used, and becomes ready again.
func TestReady(t *testing.T) {
	_, a, _ := pair(FakeOptions{})
	full := &stubborn{Bind: a.bind}
	a.bind, a.via = full, full
	var span memory.Span
	b := simpleBurst(&span, transport.KindWrite, 64<<10)
	sent := 0
	for ; a.Ready() && sent < 1000; sent++ {
		if err := carry(a, b); err != nil {
			t.Fatal(err)
		}
		a.Flush()
	}
	if c := a.Counters(); sent < 8 || sent == 1000 || c.SendFull != 0 {
		t.Errorf("not ready after %d bursts of 64 KiB, %d packets lost", sent, c.SendFull)
	}
	full.opened = true
	if !a.Ready() || a.Pending() {
		t.Error("not ready although the sockets take everything")
	}
}

// stubborn is a bind that accepts nothing until it is opened.
type stubborn struct {
	Bind
	opened bool
}

func (s *stubborn) Send(msgs []Message) (int, error) {
	if !s.opened {
		return 0, ErrFull
	}
	return s.Bind.Send(msgs)
}
