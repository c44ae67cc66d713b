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

// linuxMember is a Linux machine in the network, which stores what it receives.
type linuxMember struct {
	bind *FakeBind
	in   []Message
}

func (l *linuxMember) got() (out [][]byte) {
	for {
		for i := range l.in {
			l.in[i].Data = make([]byte, receiveRoom)
		}
		n, _ := l.bind.Receive(l.in)
		if n == 0 {
			return out
		}
		for _, m := range l.in[:n] {
			size := m.Segment
			if size == 0 {
				size = len(m.Data)
			}
			for at := 0; at < len(m.Data); at += size {
				out = append(out, m.Data[at:min(len(m.Data), at+size)])
			}
		}
	}
}

// arp returns a datagram with an ARP request.
func arp(vni uint32, from netip.Addr, mac overlay.MAC, to overlay.MAC, target netip.Addr) []byte {
	b := make([]byte, overlay.NeighbourRoom)
	n := overlay.PutAnswer(b, vni, &overlay.Question{Target: from, Sender: target, MAC: to}, mac)
	b[22+7] = 1 // a request
	return b[:n]
}

// ask passes a datagram to b as if a host of the underlay had sent it.
func (w *overlayWorld) ask(under netip.Addr, data []byte) {
	w.b.speaks(w.b.members.HostAt(under), under, false)
	w.b.take(&Message{Data: bytes.Clone(data), Remote: netip.AddrPortFrom(under, 40000), Local: netip.AddrPortFrom(underB, overlayPort)}, &insider{})
	w.b.Flush()
}

// TestOverlayQuestions checks that a Linux member gets answers about members here, in its network, and that other hosts and other
// addresses get none.
func TestOverlayQuestions(t *testing.T) {
	w := newOverlayWorld(t, 0)
	linux := &linuxMember{w.net.Bind(FakeOptions{Port: overlayPort}, underL), make([]Message, 4)}
	w.b.OnQuestion(func(vni uint32, a netip.Addr) bool { return a == inB })
	everybody, mine := overlay.MAC{0xff, 0xff, 0xff, 0xff, 0xff, 0xff}, overlay.MAC{2, 0, 0, 0, 0, 9}
	for _, c := range []struct {
		name  string
		under netip.Addr
		data  []byte
		want  bool
	}{
		{"by broadcast", underL, arp(5, inL, mine, everybody, inB), true},
		{"by unicast", underL, arp(5, inL, mine, overlay.MACOf(inB), inB), true},
		{"in another network of ours", underL, arp(7, inL, mine, everybody, inB), true},
		{"before it has an address", underL, arp(5, netip.IPv4Unspecified(), mine, everybody, inB), true},
		{"for another host's", underL, arp(5, inL, mine, everybody, inA), false},
		{"for nobody's", underL, arp(5, inL, mine, everybody, netip.MustParseAddr("10.0.0.9")), false},
		{"as another host's member", underL, arp(5, inA, mine, everybody, inB), false},
		{"in a network that it is not in", underL, arp(6, inL, mine, everybody, inB), false},
		{"in a network that is not here", underL, arp(9, inL, mine, everybody, inB), false},
		{"by a vrdma host", underA, arp(5, inA, mine, everybody, inB), false},
		{"by a stranger", netip.MustParseAddr("192.0.2.9"), arp(5, inL, mine, everybody, inB), false},
	} {
		linux.got()
		w.ask(c.under, c.data)
		answers := linux.got()
		if (len(answers) == 1) != c.want {
			t.Errorf("asked %s: %d answers, want one: %v", c.name, len(answers), c.want)
			continue
		}
		if !c.want {
			continue
		}
		_, frame, _ := overlay.Parse(answers[0])
		if q, ok := overlay.ParseNeighbour(frame); !ok || q.Asks || q.Sender != inB || q.MAC != overlay.MACOf(inB) {
			t.Errorf("asked %s: answered %+v", c.name, q)
		}
	}
	// Packets now use the MAC that it announced.
	var span memory.Span
	linux.got()
	w.b.Send(5, inB, inL, writeBurst(&span, 64, 1024))
	w.b.Flush()
	if out := linux.got(); len(out) != 1 || overlay.MAC(out[0][8:]) != mine {
		t.Errorf("packets do not go to the MAC that the member has: %x", out)
	}
}

// TestOverlayNews checks that NICs that are new here are announced to Linux members once.
func TestOverlayNews(t *testing.T) {
	w := newOverlayWorld(t, 0)
	linux := &linuxMember{w.net.Bind(FakeOptions{Port: overlayPort}, underL), make([]Message, 4)}
	w.b.SetMap(w.mapOf(t, w.hostB))
	w.b.Flush()
	if out := linux.got(); len(out) != 0 {
		t.Errorf("told of what was here before: %d datagrams", len(out))
	}
	b, l := *w.hostB, *w.lx
	b.Self = true
	m, err := overlay.NewMap([]overlay.Network{{VNI: 5, Name: "red/n", Members: []overlay.Member{member(inA, &b), member(inB, &b), member(inL, &l)}}})
	if err != nil {
		t.Fatal(err)
	}
	w.b.SetMap(m)
	w.b.Flush()
	out := linux.got()
	if len(out) != 1 {
		t.Fatalf("%d datagrams, want 1", len(out))
	}
	_, frame, _ := overlay.Parse(out[0])
	if q, ok := overlay.ParseNeighbour(frame); !ok || q.Asks || q.Sender != inA || q.MAC != overlay.MACOf(inA) {
		t.Errorf("told %+v", q)
	}
}

// overlayStream returns a burst of packets of 1024 bytes and the message that it arrives as.
func overlayStream(t testing.TB) (w *overlayWorld, b *transport.Burst, m Message) {
	w = newOverlayWorld(t, 0)
	var span memory.Span
	b = writeBurst(&span, 59<<10, 1024)
	b.First = false // so that all are of one length
	w.a.Send(5, inA, inB, b)
	for _, q := range w.a.plain.queue {
		if len(q.Data) > len(m.Data) {
			m = Message{Data: bytes.Clone(q.Data), Segment: q.Segment, Remote: netip.AddrPortFrom(underA, 40000), Local: netip.AddrPortFrom(underB, overlayPort)}
		}
	}
	w.a.plain.queue, w.a.plain.used = w.a.plain.queue[:0], 0
	w.b.speaks(w.b.members.HostAt(underA), underA, false)
	return w, b, m
}

// counting is a receiver that only counts.
type counting struct{ packets uint32 }

func (c *counting) Receive(_ ib.NetworkID, b *transport.Burst, _ bool) { c.packets += b.Packets }
func (c *counting) Congested(ib.NetworkID, uint32, ib.GID, ib.GID)     {}

// TestOverlayAllocates checks that moving packets allocates nothing.
func TestOverlayAllocates(t *testing.T) {
	w, b, m := overlayStream(t)
	count := &counting{}
	if n := testing.AllocsPerRun(100, func() {
		w.a.Send(5, inA, inB, b)
		w.a.plain.queue, w.a.plain.used = w.a.plain.queue[:0], 0
		w.b.take(&m, count)
	}); n > 0 {
		t.Errorf("%v allocations for a burst sent and received", n)
	}
}

// BenchmarkOverlay measures the overlay's cost per packet in each direction.
func BenchmarkOverlay(b *testing.B) {
	w, burst, m := overlayStream(b)
	packets := int(packetsIn(&m))
	per := func(b *testing.B) {
		b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/float64(packets), "ns/packet")
	}
	b.Run("send", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			w.a.Send(5, inA, inB, burst)
			w.a.plain.queue, w.a.plain.used = w.a.plain.queue[:0], 0
		}
		per(b)
	})
	b.Run("send_plain", func(b *testing.B) {
		p := NewPort(w.net.Bind(FakeOptions{}, underA))
		for b.Loop() {
			p.Send(ib.HostNetwork, underA, underB, burst)
			p.queue, p.used = p.queue[:0], 0
		}
		per(b)
	})
	count := &counting{}
	b.Run("receive", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			w.b.take(&m, count)
		}
		per(b)
	})
	b.Run("receive_plain", func(b *testing.B) {
		p := NewPort(w.net.Bind(FakeOptions{}, underB))
		plain := Message{Segment: m.Segment - overlay.Head4, Remote: netip.AddrPortFrom(underA, 49152), Local: netip.AddrPortFrom(underB, wire.Port)}
		var flow wire.Flow
		flow.Set(plain.Remote, plain.Local)
		for at := 0; at < len(m.Data); at += m.Segment {
			c, err := wire.Parse(bytes.Clone(m.Data[at+overlay.Head4 : min(len(m.Data), at+m.Segment)]))
			if err != nil {
				b.Fatal(err)
			}
			flow.Seal(c, uint16(at/m.Segment))
			plain.Data = append(plain.Data, c.Bytes()...)
		}
		for b.Loop() {
			p.take(&plain, count)
		}
		per(b)
	})
}
