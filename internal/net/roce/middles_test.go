package roce

import (
	"fmt"
	"io"
	"math/rand/v2"
	"net/netip"
	"slices"
	"testing"

	"vrdma.dev/vrdma/internal/device/memory"
	"vrdma.dev/vrdma/internal/device/transport"
	"vrdma.dev/vrdma/internal/ib"
)

// held is a bind that stores sent messages for a receiver.
type held struct {
	from netip.AddrPort
	msgs []Message
}

func (h *held) Source(local netip.Addr, _ uint32) (int, netip.AddrPort, bool) {
	return 0, h.from, local == h.from.Addr()
}
func (h *held) Segments() int { return MaxSegments }
func (h *held) Close() error  { return nil }

func (h *held) Send(msgs []Message) (int, error) {
	h.msgs = append(h.msgs, msgs...)
	return len(msgs), nil
}

func (h *held) Receive(msgs []Message) (int, error) {
	n := min(len(msgs), len(h.msgs))
	for i, m := range h.msgs[:n] {
		msgs[i] = Message{Data: msgs[i].Data[:copy(msgs[i].Data, m.Data)], Segment: m.Segment, Remote: m.Local, Local: m.Remote}
	}
	h.msgs = h.msgs[n:]
	return n, nil
}

// notes is a receiver that records what it gets.
type notes []string

func (n *notes) Receive(network ib.NetworkID, b *transport.Burst, ce bool) {
	var data []byte
	for _, p := range b.Data.Pieces() {
		data = append(data, p.Mem...)
	}
	c := *b
	c.Data = nil
	*n = append(*n, fmt.Sprintf("%v %+v %v %x", network, c, ce, data))
}

func (n *notes) Congested(network ib.NetworkID, qp uint32, from, to ib.GID) {
	*n = append(*n, fmt.Sprint("congested ", network, qp, from, to))
}

// TestMiddles checks that the fast path for middle packets and the general path, which a tap forces, accept the same packets, whatever
// happens to them.
func TestMiddles(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	tap, err := NewTap(io.Discard)
	if err != nil {
		t.Fatal(err)
	}
	defer tap.Close()
	out := &held{from: netip.AddrPortFrom(hostA, 5000)}
	a := NewPort(out)
	shortWay, longWay := newTaker(nil), newTaker(tap)
	for range 300 {
		out.msgs = nil
		a.SetFiller(hostB, r.IntN(2) == 0)
		for i := range 1 + r.IntN(4) {
			if err := carry(a, someBurst(r, i, 20_000)); err != nil {
				t.Fatal(err)
			}
		}
		a.Flush()
		for _, m := range out.msgs {
			damage(r, &m)
		}
		short, shortCount := shortWay.take(out.msgs)
		long, longCount := longWay.take(out.msgs)
		if !slices.Equal(short, long) || shortCount != longCount {
			t.Fatalf("the short way took\n%v %+v, the long one\n%v %+v", short, shortCount, long, longCount)
		}
	}
}

// someBurst returns the i-th message, of up to most bytes.
func someBurst(r *rand.Rand, i, most int) *transport.Burst {
	var span memory.Span
	b := simpleBurst(&span, []transport.Kind{transport.KindWrite, transport.KindWriteImm, transport.KindSend}[r.IntN(3)], 1+r.IntN(most))
	b.PSN = uint32(1<<24-5+100*i) & ib.PSNMask
	b.AckReq = r.IntN(2) == 0
	data := span.Pieces()[0].Mem
	for i := range data {
		data[i] = byte(r.Uint32())
	}
	return b
}

// damage changes a message, mostly a little: bits, a replaced packet, or two packets exchanged.
func damage(r *rand.Rand, m *Message) {
	packets := len(m.Data) / m.Segment
	packet := func() []byte {
		i := r.IntN(packets)
		return m.Data[i*m.Segment : (i+1)*m.Segment]
	}
	switch r.IntN(5) {
	case 0:
		m.Data[r.IntN(len(m.Data))] ^= 1 << r.IntN(8)
	case 1:
		packet()[r.IntN(12)] ^= 1 << r.IntN(8)
	case 2:
		copy(packet(), packet())
	case 3:
		x, y := packet(), packet()
		old := slices.Clone(x)
		copy(x, y)
		copy(y, old)
	}
}

// A taker is a port with injected messages.
type taker struct {
	port *Port
	in   *held
}

func newTaker(tap *Tap) taker {
	in := &held{from: netip.AddrPortFrom(hostB, 4791)}
	p := NewPort(in)
	p.SetTap(tap)
	return taker{p, in}
}

// take returns the bursts that the port makes of messages, and its counters.
func (k taker) take(msgs []Message) (got notes, count Counters) {
	k.in.msgs = msgs
	for k.port.Poll(&got) {
	}
	return got, k.port.Counters()
}

// BenchmarkPorts measures splitting and joining 64 KiB, without the network.
func BenchmarkPorts(b *testing.B) {
	for _, mtu := range []uint32{1024, 4096} {
		b.Run(fmt.Sprint(mtu), func(b *testing.B) {
			var span memory.Span
			burst := simpleBurst(&span, transport.KindWriteImm, 65536)
			burst.Packets, burst.MTU = 65536/mtu, mtu
			_, from, to := pair(FakeOptions{})
			h := &held{from: netip.AddrPortFrom(hostA, 5000)}
			in := &held{from: netip.AddrPortFrom(hostB, 4791)}
			from.bind, from.via, to.bind = h, h, in
			from.SetFiller(hostB, true)
			to.SetOwn(hostA, true)
			var all forgetful
			b.SetBytes(65536)
			for b.Loop() {
				if err := carry(from, burst); err != nil {
					b.Fatal(err)
				}
				h.msgs = h.msgs[:0]
				from.Flush()
				in.msgs = h.msgs
				for to.Poll(&all) {
				}
			}
		})
	}
}

// forgetful is a receiver that forgets.
type forgetful struct{}

func (*forgetful) Receive(ib.NetworkID, *transport.Burst, bool)   {}
func (*forgetful) Congested(ib.NetworkID, uint32, ib.GID, ib.GID) {}
