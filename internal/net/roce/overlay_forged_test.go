package roce

import (
	"encoding/binary"
	"math/rand/v2"
	"net/netip"
	"os"
	"testing"

	"vrdma.dev/vrdma/internal/device/transport"
	"vrdma.dev/vrdma/internal/ib"
	"vrdma.dev/vrdma/internal/net/overlay"
	"vrdma.dev/vrdma/internal/net/wire"
)

// forgery is a forged datagram. Its payload contains the claimed source.
type forgery struct {
	under netip.Addr
	head  overlay.Head
}

// enters is the rule for b, written a second time: whether a forgery may be accepted.
func (f *forgery) enters() bool {
	h := &f.head
	from, to := h.Src.Addr(), h.Dst.Addr()
	here := to == inB && (h.VNI == 5 || h.VNI == 6 || h.VNI == 7) || to == in6B && h.VNI == 5
	if !here || h.To != overlay.MACOf(to) || h.From.IsGroup() {
		return false
	}
	switch f.under {
	case underA: // a vrdma host, whose MACs are known
		return h.From == overlay.MACOf(from) && (from == inA && (h.VNI == 5 || h.VNI == 6) || from == in6A && h.VNI == 5)
	case underL: // a Linux machine, which may claim any MAC
		return from == inL && (h.VNI == 5 || h.VNI == 7) || from == in6L && h.VNI == 5
	}
	return false
}

const forgedPayload = 32

// datagram encodes it: packet n of a stream of WRITEs, with a correct ICRC.
func (f *forgery) datagram(b []byte, n uint32) int {
	size := f.head.Size()
	p := wire.Make(b[size:], wire.RCWriteMiddle, forgedPayload)
	h := p.BTH()
	h.SetPKey(0xffff)
	h.SetDestQP(99) // the same in all networks
	h.SetPSN(n)
	copy(p.Payload(), f.mark())
	var flow wire.Flow
	flow.Set(f.head.Src, f.head.Dst)
	flow.Seal(p, f.head.ID)
	f.head.Put(b, len(p.Bytes()))
	return size + len(p.Bytes())
}

// mark returns the source and destination of the packet.
func (f *forgery) mark() []byte { return markOf(f.head.VNI, f.head.Src.Addr(), f.head.Dst.Addr()) }

func markOf(vni uint32, src, dst netip.Addr) []byte {
	b := binary.BigEndian.AppendUint32(nil, vni)
	s, d := src.As16(), dst.As16()
	return append(append(b, s[:]...), d[4:]...) // 32 bytes
}

// checker receives bursts and compares each packet's mark with its burst.
type checker struct {
	t       *testing.T
	packets int
}

func (c *checker) Receive(n ib.NetworkID, b *transport.Burst, _ bool) {
	vni := n.VNI()
	for _, p := range b.Data.Pieces() {
		if string(p.Mem) != string(markOf(vni, b.SGID.Addr(), b.DGID.Addr())) {
			c.t.Fatalf("a packet crossed: in network %d from %v to %v came %x", vni, b.SGID.Addr(), b.DGID.Addr(), p.Mem)
		}
		c.packets++
	}
}

func (c *checker) Congested(ib.NetworkID, uint32, ib.GID, ib.GID) {}

// TestOverlayForged uses two networks with the same addresses and queue pair numbers on the same two hosts. A peer forges VNI, addresses
// and MACs; valid packets are mixed with forged ones, and merged as by GRO. Exactly the valid packets must be accepted.
func TestOverlayForged(t *testing.T) {
	tries := 1_000_000
	if os.Getenv("VRDMA_TEST_ALL") != "" {
		tries = 10_000_000
	}
	w := newOverlayWorld(t, 0)
	rnd := rand.New(rand.NewPCG(1, 2))
	unders := []netip.Addr{underA, underA, underL, underL, underB, netip.MustParseAddr("192.0.2.9")}
	inner := []netip.Addr{inA, inA, inB, inL, in6A, in6B, in6L, netip.MustParseAddr("10.0.0.9"), netip.MustParseAddr("fd00::9")}
	vnis := []uint32{5, 5, 6, 6, 7, 8, overlay.MaxVNI, 0}
	pick := func(list []netip.Addr) netip.Addr { return list[rnd.IntN(len(list))] }
	check := &checker{t: t}
	want, sent := 0, 0
	buf := make([]byte, receiveRoom)
	psn := uint32(0)
	for sent < tries {
		under := pick(unders)
		n, length := 0, 0
		m := Message{Remote: netip.AddrPortFrom(under, 40000), Local: netip.AddrPortFrom(underB, overlayPort)}
		var f forgery
		for range 1 + rnd.IntN(32) {
			if rnd.IntN(3) > 0 || n == 0 { // else as the one before
				f = forgery{under: under, head: overlay.Head{
					VNI: vnis[rnd.IntN(len(vnis))], TTL: 64, TOS: overlay.ECT0, Fragment: wire.DontFragment,
					Src: netip.AddrPortFrom(pick(inner), 50000), Dst: netip.AddrPortFrom(inB, wire.Port),
				}}
				if rnd.IntN(4) == 0 {
					f.head.Dst = netip.AddrPortFrom(pick(inner), wire.Port)
				}
				if !f.head.Src.Addr().Is4() && f.head.Dst.Addr().Is4() {
					f.head.Dst = netip.AddrPortFrom(in6B, wire.Port)
				}
				if f.head.Src.Addr().Is4() && !f.head.Dst.Addr().Is4() {
					f.head.Src = netip.AddrPortFrom(in6A, 50000)
				}
				f.head.To, f.head.From = overlay.MACOf(f.head.Dst.Addr()), overlay.MACOf(f.head.Src.Addr())
				switch rnd.IntN(8) {
				case 0:
					f.head.To = overlay.MACOf(pick(inner))
				case 1:
					f.head.From = overlay.MACOf(pick(inner))
				case 2:
					f.head.From = overlay.MAC{0xff, 0xff, 0xff, 0xff, 0xff, 0xff}
				}
			}
			size := f.datagram(buf[n:], psn)
			if length == 0 {
				length = size
			} else if size != length {
				break // GRO merges datagrams of one length
			}
			psn = (psn + 1) & ib.PSNMask
			n += size
			sent++
			if f.enters() {
				want++
			}
		}
		m.Data, m.Segment = buf[:n], length
		w.b.arrives(m.Remote)
		w.b.take(&m, check)
		if check.packets != want {
			t.Fatalf("after %d packets %d came in, and %d should have", sent, check.packets, want)
		}
	}
	c := w.b.Counters()
	t.Logf("%d of %d came in; %+v, from ourselves %d", want, sent, c.Overlay, c.FromSelf)
	o := c.Overlay
	if dropped := o.Strangers + o.NoNetwork + o.NotMember + o.Spoofed + o.NotHere + o.BadHead + c.FromSelf; int(dropped) != sent-want {
		t.Errorf("%d were dropped, and %d are counted", sent-want, dropped)
	}
	if o.Strangers == 0 || o.NoNetwork == 0 || o.NotMember == 0 || o.Spoofed == 0 || o.NotHere == 0 || c.FromSelf == 0 || want < sent/50 {
		t.Error("not every kind of forgery was among them")
	}
}

// TestOverlayMap checks that a new map changes what is accepted.
func TestOverlayMap(t *testing.T) {
	w := newOverlayWorld(t, 0)
	f := forgery{under: underA, head: overlay.Head{
		VNI: 6, TTL: 64, Fragment: wire.DontFragment, Src: netip.AddrPortFrom(inA, 50000), Dst: netip.AddrPortFrom(inB, wire.Port),
		To: overlay.MACOf(inB), From: overlay.MACOf(inA),
	}}
	b := make([]byte, 256)
	n := f.datagram(b, 1)
	check := &checker{t: t}
	give := func() {
		m := Message{Data: b[:n], Remote: netip.AddrPortFrom(underA, 40000), Local: netip.AddrPortFrom(underB, overlayPort)}
		w.b.arrives(m.Remote)
		w.b.take(&m, check)
	}
	give()
	give()
	if check.packets != 2 {
		t.Fatalf("%d packets came in, want 2", check.packets)
	}
	w.hostB.Self = true
	a, bb := *w.hostA, *w.hostB
	a.Self = false
	m, err := overlay.NewMap([]overlay.Network{{VNI: 5, Name: "red/n", Members: []overlay.Member{member(inA, &a), member(inB, &bb)}}})
	if err != nil {
		t.Fatal(err)
	}
	w.b.SetMap(m)
	give()
	if c := w.b.Counters().Overlay; check.packets != 2 || c.NoNetwork != 1 {
		t.Errorf("a network that is gone lets packets in: %d, %+v", check.packets, c)
	}
}

// FuzzOverlay checks that no datagram causes a panic, or is accepted against the rule.
func FuzzOverlay(f *testing.F) {
	for _, vni := range []uint32{5, 6, 9} {
		g := forgery{head: overlay.Head{VNI: vni, TTL: 64, Fragment: wire.DontFragment, Src: netip.AddrPortFrom(inL, 50000), Dst: netip.AddrPortFrom(inB, wire.Port), To: overlay.MACOf(inB), From: overlay.MACOf(inL)}}
		b := make([]byte, 256)
		n := g.datagram(b, 1)
		f.Add(b[:n], uint16(0))
		f.Add(append(b[:n:n], b[:n]...), uint16(n))
	}
	q := overlay.Question{Asks: true, Target: inB, Sender: inL, MAC: overlay.MACOf(inL)}
	b := make([]byte, overlay.NeighbourRoom)
	f.Add(b[:overlay.PutAnswer(b, 5, &q, overlay.MACOf(inL))], uint16(0))
	w := newOverlayWorld(f, wire.FeatureFiller)
	f.Fuzz(func(t *testing.T, data []byte, segment uint16) {
		for _, under := range []netip.Addr{underA, underL} {
			w.b.speaks(w.b.members.HostAt(under), under, false)
			m := Message{Data: data, Segment: int(segment), Remote: netip.AddrPortFrom(under, 40000), Local: netip.AddrPortFrom(underB, overlayPort)}
			if len(data) == 0 {
				continue
			}
			w.b.take(&m, ruled{t, under})
		}
		w.b.Flush()
	})
}

// ruled checks that only allowed bursts are accepted.
type ruled struct {
	t     *testing.T
	under netip.Addr
}

func (r ruled) Receive(n ib.NetworkID, b *transport.Burst, _ bool) { r.check(n.VNI(), b.SGID, b.DGID) }

func (r ruled) Congested(n ib.NetworkID, _ uint32, from, to ib.GID) { r.check(n.VNI(), from, to) }

func (r ruled) check(vni uint32, from, to ib.GID) {
	f := forgery{under: r.under, head: overlay.Head{VNI: vni, Src: netip.AddrPortFrom(from.Addr(), 0), Dst: netip.AddrPortFrom(to.Addr(), 0), From: overlay.MACOf(from.Addr()), To: overlay.MACOf(to.Addr())}}
	if !to.IsMulticast() && !f.enters() {
		r.t.Fatalf("from %v came in: network %d, %v to %v", r.under, vni, from.Addr(), to.Addr())
	}
}
