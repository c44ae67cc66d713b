package roce

import (
	"bytes"
	"net/netip"
	"testing"

	"vrdma.dev/vrdma/internal/device/memory"
	"vrdma.dev/vrdma/internal/device/transport"
	"vrdma.dev/vrdma/internal/ib"
	"vrdma.dev/vrdma/internal/net/overlay"
	"vrdma.dev/vrdma/internal/net/wire"
)

// overlayWorld has two vrdma hosts, a and b, and a Linux machine. All have members in network 5. In network 6 the same addresses belong to
// other hosts, and only b and the Linux machine are in network 7.
type overlayWorld struct {
	net              *FakeNet
	a, b             *Overlay
	hostA, hostB, lx *overlay.Host
}

var (
	underA, underB, underL = netip.MustParseAddr("192.0.2.1"), netip.MustParseAddr("192.0.2.2"), netip.MustParseAddr("192.0.2.3")
	inA, inB, inL          = netip.MustParseAddr("10.0.0.1"), netip.MustParseAddr("10.0.0.2"), netip.MustParseAddr("10.0.0.3")
	in6A, in6B, in6L       = netip.MustParseAddr("fd00::1"), netip.MustParseAddr("fd00::2"), netip.MustParseAddr("fd00::3")
)

const overlayPort = 4789

func member(a netip.Addr, h *overlay.Host) overlay.Member {
	return overlay.Member{Addr: a, MAC: overlay.MACOf(a), Host: h, NIC: h.Name}
}

// mapOf returns the map of one of the hosts.
func (w *overlayWorld) mapOf(t testing.TB, self *overlay.Host) *overlay.Map {
	t.Helper()
	w.hostA.Self, w.hostB.Self = self == w.hostA, self == w.hostB
	a, b, l := *w.hostA, *w.hostB, *w.lx
	networks := []overlay.Network{
		{VNI: 5, Name: "red/n", Members: []overlay.Member{
			member(inA, &a), member(inB, &b), member(inL, &l), member(in6A, &a), member(in6B, &b), member(in6L, &l),
		}},
		{VNI: 6, Name: "blue/n", Members: []overlay.Member{member(inA, &a), member(inB, &b)}},
	}
	if !a.Self {
		networks = append(networks, overlay.Network{VNI: 7, Name: "green/n", Members: []overlay.Member{member(inB, &b), member(inL, &l)}})
	}
	m, err := overlay.NewMap(networks)
	if err != nil {
		t.Fatal(err)
	}
	return m
}

func newOverlayWorld(t testing.TB, features uint32) *overlayWorld {
	t.Helper()
	w := &overlayWorld{
		net:   NewFakeNet(),
		hostA: &overlay.Host{Name: "a", Addrs: []netip.Addr{underA}, Features: features},
		hostB: &overlay.Host{Name: "b", Addrs: []netip.Addr{underB}, Features: features},
		lx:    &overlay.Host{Name: "linux", Addrs: []netip.Addr{underL}, Linux: true},
	}
	w.a = NewOverlay(OverlayConfig{Bind: w.net.Bind(FakeOptions{Port: overlayPort}, underA), Addrs: []netip.Addr{underA}})
	w.b = NewOverlay(OverlayConfig{Bind: w.net.Bind(FakeOptions{Port: overlayPort}, underB), Addrs: []netip.Addr{underB}})
	w.a.SetMap(w.mapOf(t, w.hostA))
	w.b.SetMap(w.mapOf(t, w.hostB))
	w.a.Flush()
	w.b.Flush()
	return w
}

// insider stores what arrives.
type insider struct {
	got []struct {
		vni  uint32
		b    transport.Burst
		data []byte
	}
	packets, cnps int
	vnis          map[uint32]int
}

func (i *insider) Receive(n ib.NetworkID, b *transport.Burst, _ bool) {
	vni := n.VNI()
	var data []byte
	if b.Data != nil {
		for _, p := range b.Data.Pieces() {
			data = append(data, p.Mem...)
		}
	}
	if i.vnis != nil {
		i.vnis[vni] += int(b.Packets)
	}
	i.packets += int(b.Packets)
	i.got = append(i.got, struct {
		vni  uint32
		b    transport.Burst
		data []byte
	}{vni, *b, data})
}

func (i *insider) Congested(ib.NetworkID, uint32, ib.GID, ib.GID) { i.cnps++ }

// writeBurst returns a WRITE of n bytes.
func writeBurst(span *memory.Span, n, mtu int) *transport.Burst {
	data := make([]byte, n)
	for i := range data {
		data[i] = byte(i * 7)
	}
	span.Reset()
	span.Add(data)
	return &transport.Burst{
		Type: ib.RC, Kind: transport.KindWrite, First: true, Last: true, Src: 77, Dst: 99, PKey: 0xffff, MTU: uint32(mtu),
		Packets: uint32(max((n+mtu-1)/mtu, 1)), Length: uint32(n), Data: span, AckReq: true,
	}
}

// TestOverlayCarries checks that bursts of every length arrive complete, in their network.
func TestOverlayCarries(t *testing.T) {
	for _, features := range []uint32{0, wire.FeatureFiller} {
		w := newOverlayWorld(t, features)
		for _, way := range [][2]netip.Addr{{inA, inB}, {in6A, in6B}} {
			for _, n := range []int{0, 1, 64, 1000, 1024, 1025, 4096, 60 << 10} {
				var span memory.Span
				b := writeBurst(&span, n, 1024)
				for _, vni := range []uint32{5, 6} {
					if vni == 6 && !way[0].Is4() {
						continue
					}
					if err := w.a.Send(ib.VirtualNetwork(vni), way[0], way[1], b); err != nil {
						t.Fatal(err)
					}
					w.a.Flush()
					var in insider
					for w.b.Poll(&in) {
					}
					var data []byte
					for _, g := range in.got {
						data = append(data, g.data...)
						if g.vni != vni || g.b.SGID.Addr() != way[0] || g.b.DGID.Addr() != way[1] || g.b.Dst != 99 {
							t.Fatalf("%d bytes from %v in network %d: %+v in %d", n, way[0], vni, g.b, g.vni)
						}
					}
					if want := span.Pieces(); len(want) > 0 && !bytes.Equal(data, want[0].Mem) || in.packets != int(b.Packets) {
						t.Fatalf("%d bytes from %v in network %d arrive as %d, in %d packets of %d", n, way[0], vni, len(data), in.packets, b.Packets)
					}
				}
			}
		}
		w.a.SendCNP(5, inA, inB, 77, 99)
		w.a.Flush()
		var in insider
		w.b.Poll(&in)
		if in.cnps != 1 {
			t.Error("a CNP does not arrive")
		}
		c, d := w.a.Counters(), w.b.Counters()
		if c.SentPackets-c.Overlay.News != d.RcvdPackets || d.Overlay != (OverlayCounters{News: d.Overlay.News}) || d.BadICRC+d.Malformed != 0 {
			t.Errorf("sent %+v\nreceived %+v", c, d)
		}
	}
}

// TestOverlayGroup checks that a multicast datagram goes to every other host of the network.
func TestOverlayGroup(t *testing.T) {
	w := newOverlayWorld(t, 0)
	group := netip.MustParseAddr("239.1.2.3")
	var span memory.Span
	span.Add(make([]byte, 100))
	b := &transport.Burst{Type: ib.UD, Kind: transport.KindSend, First: true, Last: true, Src: 7, Dst: ib.EveryQP, PKey: 0xffff, MTU: 1024, Packets: 1, Length: 100, Data: &span}
	if n := w.a.SendGroup(5, inA, group, b); n != 2 {
		t.Errorf("sent to %d hosts, want 2", n)
	}
	if n := w.a.SendGroup(6, inA, group, b); n != 1 {
		t.Errorf("sent to %d hosts, want 1", n)
	}
	w.a.Flush()
	var in insider
	for w.b.Poll(&in) {
	}
	if len(in.got) != 2 || in.got[0].vni != 5 || in.got[1].vni != 6 || in.got[0].b.DGID.Addr() != group {
		t.Errorf("arrived: %+v", in.got)
	}
}
