package roce

import (
	"io"
	"math/rand/v2"
	"net/netip"
	"slices"
	"testing"

	"vrdma.dev/vrdma/internal/net/overlay"
	"vrdma.dev/vrdma/internal/net/wire"
)

// TestOverlayMiddles is TestMiddles in a virtual network.
func TestOverlayMiddles(t *testing.T) {
	r := rand.New(rand.NewPCG(3, 4))
	tap, err := NewTap(io.Discard)
	if err != nil {
		t.Fatal(err)
	}
	defer tap.Close()
	for _, features := range []uint32{0, wire.FeatureFiller} {
		w, other := newOverlayWorld(t, features), newOverlayWorld(t, features)
		shortWay, longWay := w.b, other.b
		longWay.SetTap(tap)
		out := &held{}
		w.a.plain.via = out
		packets := uint64(0)
		for round := range 60 {
			out.msgs = nil
			from, to := inA, inB
			if r.IntN(2) == 0 {
				from, to = in6A, in6B
			}
			for i := range 1 + r.IntN(4) {
				b := someBurst(r, i, 10_000)
				if err := w.a.Send(5, from, to, b); err != nil {
					t.Fatal(err)
				}
				packets += uint64(b.Packets)
			}
			w.a.Flush()
			sound := round%4 == 0
			for i := range out.msgs {
				if m := &out.msgs[i]; !sound {
					damage(r, m)
					if r.IntN(8) == 0 { // a mark, or another head in the midst
						at := r.IntN(len(m.Data)/m.Segment) * m.Segment
						m.Data[at+r.IntN(overlay.Head4)] ^= 1 << r.IntN(8)
					}
				}
			}
			short, long := takeIn(shortWay, out.msgs), takeIn(longWay, out.msgs)
			if !slices.Equal(short, long) || shortWay.Counters() != longWay.Counters() {
				t.Fatalf("the short way took\n%v %+v, the long one\n%v %+v", short, shortWay.Counters(), long, longWay.Counters())
			}
			if c := shortWay.Counters(); sound && round == 0 && (c.RcvdPackets != packets || c.BadICRC+c.Malformed != 0) {
				t.Fatalf("of %d packets came %+v", packets, c)
			}
		}
	}
}

// takeIn returns the bursts that an overlay makes of messages from host a.
func takeIn(o *Overlay, msgs []Message) (got notes) {
	for _, m := range msgs {
		m.Remote, m.Local = netip.AddrPortFrom(underA, 40000), netip.AddrPortFrom(underB, overlayPort)
		m.Data = slices.Clone(m.Data)
		o.arrives(m.Remote)
		o.take(&m, &got)
	}
	return got
}
