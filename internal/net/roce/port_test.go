package roce

import (
	"bytes"
	"math/rand/v2"
	"net/netip"
	"testing"

	"vrdma.dev/vrdma/internal/device/memory"
	"vrdma.dev/vrdma/internal/device/transport"
	"vrdma.dev/vrdma/internal/ib"
	"vrdma.dev/vrdma/internal/net/wire"
	"vrdma.dev/vrdma/internal/testkit/golden"
)

var (
	hostA = netip.MustParseAddr("10.0.0.1")
	hostB = netip.MustParseAddr("10.0.0.2")
	host6 = netip.MustParseAddr("fd00::1")
)

// sink joins the bursts that a port delivers, as far as they belong together.
type sink struct {
	t         testing.TB
	bursts    []transport.Burst
	data      [][]byte
	marked    int
	congested []uint32
}

func (s *sink) Receive(_ ib.NetworkID, b *transport.Burst, ce bool) {
	if ce {
		s.marked++
	}
	data := flatten(b.Data)
	if n := len(s.bursts); n > 0 {
		last := &s.bursts[n-1]
		if carriesData(b.Kind) && !last.Last && !b.First && (last.PSN+last.Packets)&ib.PSNMask == b.PSN && b.Dst == last.Dst {
			s.data[n-1] = append(s.data[n-1], data...)
			last.Packets += b.Packets
			last.Last, last.AckReq, last.Solicited = b.Last, b.AckReq, b.Solicited
			if b.Last {
				last.Kind, last.Imm = b.Kind, b.Imm
				last.Syndrome, last.MSN = b.Syndrome, b.MSN
			}
			return
		}
	}
	c := *b
	c.Data = nil
	s.bursts = append(s.bursts, c)
	s.data = append(s.data, data)
}

func (s *sink) Congested(_ ib.NetworkID, qp uint32, _, _ ib.GID) {
	s.congested = append(s.congested, qp)
}

func (s *sink) clear() { *s = sink{t: s.t} }

// drain polls until nothing is left.
func drain(p *Port, s *sink) {
	for range 1000 {
		if !p.Poll(s) {
			return
		}
	}
}

// pair returns two ports on a fake network.
func pair(o FakeOptions) (n *FakeNet, a, b *Port) {
	n = NewFakeNet()
	return n, NewPort(n.Bind(o, hostA, host6)), NewPort(n.Bind(o, hostB))
}

// simpleBurst returns a burst of n bytes with an MTU of 1024.
func simpleBurst(span *memory.Span, kind transport.Kind, n int) *transport.Burst {
	span.Reset()
	span.Add(bytes.Repeat([]byte{0x5a}, n))
	return &transport.Burst{
		Type: ib.RC, Kind: kind, First: true, Last: true, Packets: uint32(max(1, (n+1023)/1024)), MTU: 1024,
		Src: 7, Dst: 9, PKey: 0xffff, PSN: 100, SGID: ib.GIDOf(hostA), DGID: ib.GIDOf(hostB), Length: uint32(n), Data: span,
	}
}

func TestPort(t *testing.T) {
	for _, c := range []struct {
		name string
		o    FakeOptions
	}{
		{"batched", FakeOptions{}},
		{"one by one", FakeOptions{Segments: 1, Merge: 1}},
		{"batched to one by one", FakeOptions{Merge: 1}},
		{"one by one to batched", FakeOptions{Segments: 1}},
		{"odd batches", FakeOptions{Segments: 3, Merge: 5}},
		{"small send buffer", FakeOptions{SendBuffer: 2}},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := rand.New(rand.NewPCG(5, 6))
			_, a, b := pair(c.o)
			s := &sink{t: t}
			var span memory.Span
			for i := range 300 {
				want, data := randomBurst(r, &span)
				if err := carry(a, &want); err != nil {
					t.Fatal(err)
				}
				for range 1000 {
					if a.Flush(); !a.Pending() {
						break
					}
				}
				s.clear()
				drain(b, s)
				if len(s.bursts) != 1 {
					t.Fatalf("burst %d, %+v: arrived as %d", i, want, len(s.bursts))
				}
				got := s.bursts[0]
				if want.Packets > 1 && got.Packets > 1 {
					got.MTU = want.MTU // joined from pieces, of which a single one does not show the MTU
				}
				got.Data = new(memory.Span)
				got.Data.Add(s.data[0])
				compareBursts(t, i, &got, &want, data)
			}
			if n := b.Counters(); n.BadICRC+n.Malformed != 0 || n.RcvdPackets != a.Counters().SentPackets {
				t.Errorf("sent %+v, received %+v", a.Counters(), n)
			}
		})
	}
}

// TestDamage checks that no changed packet is delivered.
func TestDamage(t *testing.T) {
	r := rand.New(rand.NewPCG(7, 8))
	n, a, b := pair(FakeOptions{})
	b.SetOwn(hostA, true)
	damaged := 0
	n.Way = func(d *FakeDatagram) {
		switch at := r.IntN(len(d.Data)); r.IntN(4) {
		case 0:
			if at != 4 { // the congestion bits may change
				d.Data[at] ^= 1 << r.IntN(8)
				damaged++
			}
		case 1:
			d.Data = d.Data[:at]
			damaged++
		}
	}
	s := &sink{t: t}
	var span memory.Span
	for range 300 {
		if err := carry(a, simpleBurst(&span, transport.KindWrite, 5000)); err != nil {
			t.Fatal(err)
		}
		a.Flush()
		drain(b, s)
	}
	got, sent := b.Counters(), a.Counters()
	// A datagram without any bytes does not count as a packet.
	if bad := got.BadICRC + got.Malformed; bad == 0 || bad > uint64(damaged) || bad < uint64(damaged)*9/10 {
		t.Errorf("%d packets damaged, %d found", damaged, bad)
	}
	delivered := uint32(0)
	for i := range s.bursts {
		delivered += s.bursts[i].Packets
	}
	if int(delivered) != int(sent.SentPackets)-damaged {
		t.Errorf("%d packets sent, %d damaged, %d delivered", sent.SentPackets, damaged, delivered)
	}
	for _, d := range s.data {
		for _, x := range d {
			if x != 0x5a {
				t.Fatal("damaged data was delivered")
			}
		}
	}
}

// TestDeviceWithoutSegments checks a device that does not segment: packets are sent one by one, with the matching ICRC, even if the socket
// is full in between.
func TestDeviceWithoutSegments(t *testing.T) {
	n := NewFakeNet()
	blocked := false
	a := NewPort(&gate{Bind: n.Bind(FakeOptions{FailSegments: true}, hostA), blocked: &blocked})
	b := NewPort(n.Bind(FakeOptions{}, hostB))
	a.SetFiller(hostB, true)
	packets, filled := 0, 0
	n.Way = func(d *FakeDatagram) {
		packets++
		blocked = packets == 5
		var flow wire.Flow
		flow.Set(d.From, d.To)
		p, err := wire.Parse(d.Data)
		if err != nil {
			t.Fatal(err)
		}
		if id, ok := flow.Check(p, 0); !ok || id != 0 {
			t.Errorf("%v has the ICRC of identification %d, %v; it leaves with 0", p, id, ok)
		}
		if p.Filler() > 0 {
			filled++
		}
	}
	s := &sink{t: t}
	var span memory.Span
	for i := range 2 {
		if err := carry(a, simpleBurst(&span, transport.KindWrite, 10_000)); err != nil {
			t.Fatal(err)
		}
		a.Flush()
		if i == 0 && (packets != 5 || !a.Pending()) {
			t.Errorf("%d packets sent to a socket that took 5, pending %v", packets, a.Pending())
		}
		blocked = false
		a.Flush()
		drain(b, s)
		if len(s.bursts) != i+1 || s.bursts[i].Packets != 10 || len(s.data[i]) != 10_000 {
			t.Fatalf("message %d: got %+v", i, s.bursts)
		}
	}
	// Filler is useful only with segmentation: the second message has none.
	if packets != 20 || filled != 8 {
		t.Errorf("%d packets, %d with filler, want 20 and 8", packets, filled)
	}
}

// TestFull checks that packets wait while the socket is full, and are dropped when the queue is full.
func TestFull(t *testing.T) {
	net := NewFakeNet()
	blocked := true
	gate := &gate{Bind: net.Bind(FakeOptions{}, hostA), blocked: &blocked}
	a, b := NewPort(gate), NewPort(net.Bind(FakeOptions{}, hostB))
	var span memory.Span
	sent := 0
	for range 100 {
		if err := carry(a, simpleBurst(&span, transport.KindSend, 60_000)); err != nil {
			t.Fatal(err)
		}
		sent += 59
	}
	a.Flush()
	lost := int(a.Counters().SendFull)
	if !a.Pending() || lost == 0 || lost >= sent {
		t.Fatalf("%d packets sent to a blocked socket: pending %v, lost %d", sent, a.Pending(), lost)
	}
	blocked = false
	a.Flush()
	s := &sink{t: t}
	drain(b, s)
	if got := int(b.Counters().RcvdPackets); got != sent-lost || a.Pending() {
		t.Errorf("%d packets arrived, want %d of %d; pending %v", got, sent-lost, sent, a.Pending())
	}
}

// gate is a bind whose socket may be full.
type gate struct {
	Bind
	blocked *bool
}

func (g *gate) Send(m []Message) (int, error) {
	if *g.blocked {
		return 0, ErrFull
	}
	return g.Bind.Send(m)
}

// TestOwn checks that a foreign host may use any identification, but a vrdma host may not.
func TestOwn(t *testing.T) {
	net := NewFakeNet()
	bind := net.Bind(FakeOptions{}, hostA)
	b := NewPort(net.Bind(FakeOptions{}, hostB))
	_, from, _ := bind.Source(hostA, 0)
	to := netip.AddrPortFrom(hostB, wire.Port)
	var flow wire.Flow
	flow.Set(from, to)
	for _, c := range []struct {
		own     bool
		id      uint16
		arrives bool
	}{{false, 0, true}, {false, 0xbeef, true}, {true, 127, true}, {true, 128, false}, {true, 0xbeef, false}, {false, 0xbeef, true}} {
		b.SetOwn(hostA, c.own)
		p := wire.Make(make([]byte, 100), wire.RCSendOnly, 10)
		flow.Seal(p, c.id)
		if _, err := bind.Send([]Message{{Data: p.Bytes(), Remote: to}}); err != nil {
			t.Fatal(err)
		}
		s := &sink{t: t}
		drain(b, s)
		if got := len(s.bursts) == 1; got != c.arrives {
			t.Errorf("own %v, identification %d: arrives %v, want %v", c.own, c.id, got, c.arrives)
		}
	}
	// Such an identification causes doubt, but forged packets must not disable the check.
	doubts := 0
	b.OnDoubt(func(a netip.Addr) {
		if doubts++; a != hostA {
			t.Errorf("doubts about %v, want %v", a, hostA)
		}
	})
	b.SetOwn(hostA, true)
	for i := range 3 {
		p := wire.Make(make([]byte, 100), wire.RCSendOnly, 10)
		flow.Seal(p, 0xbeef)
		if _, err := bind.Send([]Message{{Data: p.Bytes(), Remote: to}}); err != nil {
			t.Fatal(err)
		}
		s := &sink{t: t}
		drain(b, s)
		if len(s.bursts) != 0 || doubts != i+1 {
			t.Errorf("forged packet %d: %d arrived, %d doubts", i, len(s.bursts), doubts)
		}
	}
}

// TestHelloIdentification checks that a hello may have any identification, and that LongID reports it.
func TestHelloIdentification(t *testing.T) {
	net := NewFakeNet()
	bind := net.Bind(FakeOptions{}, hostA)
	b := NewPort(net.Bind(FakeOptions{}, hostB))
	_, from, _ := bind.Source(hostA, 0)
	to := netip.AddrPortFrom(hostB, wire.Port)
	var flow wire.Flow
	flow.Set(from, to)
	b.SetOwn(hostA, true)
	for _, c := range []struct {
		class   byte
		id      uint16
		arrives bool
	}{{wire.ClassHello, 5, true}, {wire.ClassHello, 0xbeef, true}, {wire.ClassCM, 5, true}, {wire.ClassCM, 0xbeef, false}} {
		p := wire.Make(make([]byte, 400), wire.UDSendOnly, wire.MADSize)
		p.BTH().SetDestQP(wire.GSIQP)
		p.Payload()[1] = c.class
		flow.Seal(p, c.id)
		if _, err := bind.Send([]Message{{Data: p.Bytes(), Remote: to}}); err != nil {
			t.Fatal(err)
		}
		s := &sink{t: t}
		drain(b, s)
		if got := len(s.bursts) == 1; got != c.arrives || got && b.LongID() != (c.id >= ownIDs) {
			t.Errorf("class %#x, identification %d: arrives %v, want %v; long %v", c.class, c.id, got, c.arrives, b.LongID())
		}
	}
}

func TestCongestion(t *testing.T) {
	n, a, b := pair(FakeOptions{})
	n.Way = func(d *FakeDatagram) { d.CE = d.Data[0] != byte(wire.CNP) }
	s := &sink{t: t}
	var span memory.Span
	if err := carry(a, simpleBurst(&span, transport.KindSend, 10)); err != nil {
		t.Fatal(err)
	}
	a.SendCNP(ib.HostNetwork, hostA, hostB, 7, 0x1234)
	a.Flush()
	drain(b, s)
	if s.marked != 1 || len(s.congested) != 1 || s.congested[0] != 0x1234 {
		t.Errorf("%d bursts marked, congestion notified for %#x; want 1 and 0x1234", s.marked, s.congested)
	}
	if c := b.Counters(); c.RcvdCNP != 1 || c.RcvdMarked != 1 || a.Counters().SentCNP != 1 {
		t.Errorf("%+v", c)
	}
}

// TestNoWay checks that bursts between unsuitable addresses are dropped, not sent from another address.
func TestNoWay(t *testing.T) {
	_, a, b := pair(FakeOptions{})
	var span memory.Span
	for _, c := range []struct{ from, to netip.Addr }{
		{netip.MustParseAddr("10.0.0.77"), hostB}, {host6, hostB}, {hostA, netip.MustParseAddr("fd00::2")},
	} {
		burst := simpleBurst(&span, transport.KindSend, 10)
		burst.SGID, burst.DGID = ib.GIDOf(c.from), ib.GIDOf(c.to)
		if err := carry(a, burst); err != nil {
			t.Fatal(err)
		}
	}
	a.Flush()
	s := &sink{t: t}
	drain(b, s)
	if n := a.Counters().NoSource; n != 3 || len(s.bursts) != 0 {
		t.Errorf("%d bursts without a way, %d arrived; want 3 and none", n, len(s.bursts))
	}
}

// TestSourcePort checks that packets for a queue pair keep their source port, and that many queue pairs use all ports.
func TestSourcePort(t *testing.T) {
	seen := map[netip.AddrPort]bool{}
	bind := NewFakeNet().Bind(FakeOptions{}, hostA)
	for qp := uint32(2); qp < 200; qp++ {
		_, one, _ := bind.Source(hostA, qp)
		_, two, _ := bind.Source(hostA, qp)
		if one != two {
			t.Errorf("queue pair %d has ports %v and %v", qp, one, two)
		}
		seen[one] = true
	}
	if len(seen) != poolSize {
		t.Errorf("200 queue pairs use %d ports, want %d", len(seen), poolSize)
	}
}

// FuzzTake checks for any input that only data inside of the message is delivered, and that splitting it again gives the same packets.
func FuzzTake(f *testing.F) {
	for _, name := range []string{"rc-all-opcodes", "ud-pingpong-512", "rc-nak-rkey", "uc-pingpong-4096"} {
		for _, c := range golden.Read(f, golden.Path(name+".pcap")) {
			f.Add(c.Data, uint16(0), true)
			f.Add(bytes.Repeat(c.Data, 3), uint16(len(c.Data)), true)
		}
	}
	p := NewPort(NewFakeNet().Bind(FakeOptions{}, hostB))
	r := &recutter{buf: make([]byte, MaxMessage)}
	f.Fuzz(func(t *testing.T, data []byte, segment uint16, seal bool) {
		if len(data) == 0 || len(data) > MaxMessage {
			return
		}
		data = bytes.Clone(data)
		m := Message{Data: data, Segment: int(segment), Remote: addr4a, Local: addr4b}
		size := int(segment)
		if size == 0 || size > len(data) {
			size = len(data)
		}
		if seal {
			var flow wire.Flow
			flow.Set(addr4a, addr4b)
			for at := 0; at < len(data); at += size {
				if pkt, err := wire.Parse(data[at:min(len(data), at+size)]); err == nil {
					flow.Seal(pkt, uint16(at))
				}
			}
		}
		r.t = t
		p.take(&m, r)
	})
}

// recutter checks bursts by splitting them again.
type recutter struct {
	t   *testing.T
	cut Cutter
	buf []byte
}

func (r *recutter) Receive(_ ib.NetworkID, b *transport.Burst, _ bool) {
	if err := r.cut.Start(b, addr4a, addr4b); err != nil {
		// An empty last packet after others: the transport rejects it.
		if b.Data.Len() != 0 || b.First {
			r.t.Errorf("%+v: %v", b, err)
		}
		return
	}
	packets := uint32(0)
	for {
		n, segment, err := r.cut.Next(r.buf, MaxSegments)
		if err != nil {
			r.t.Fatal(err)
		}
		if n == 0 {
			break
		}
		packets += uint32((n + segment - 1) / segment)
	}
	if packets != b.Packets {
		r.t.Errorf("%d packets of %d", packets, b.Packets)
	}
}

func (r *recutter) Congested(ib.NetworkID, uint32, ib.GID, ib.GID) {}

// TestFromSelf checks packets with a source address of this port: this port never sends to itself, so a local program forged them.
func TestFromSelf(t *testing.T) {
	n := NewFakeNet()
	both := NewPort(n.Bind(FakeOptions{}, hostA, hostB))
	var span memory.Span
	if err := carry(both, simpleBurst(&span, transport.KindSend, 100)); err != nil {
		t.Fatal(err)
	}
	both.Flush()
	s := &sink{t: t}
	drain(both, s)
	if c := both.Counters(); len(s.bursts) != 0 || c.FromSelf != 1 || c.RcvdPackets != 1 {
		t.Errorf("%d bursts delivered, counters %+v", len(s.bursts), c)
	}
}

// TestSplitAmidSend checks that packets sent one by one to free the queue do not corrupt a burst.
func TestSplitAmidSend(t *testing.T) {
	n := NewFakeNet()
	blocked := true
	a := NewPort(&gate{Bind: n.Bind(FakeOptions{FailSegments: true}, hostA), blocked: &blocked})
	n.Way = func(d *FakeDatagram) { checkPacket(t, d) }
	var span memory.Span
	for a.Counters().SendFull == 0 {
		if err := carry(a, simpleBurst(&span, transport.KindSend, 60_000)); err != nil {
			t.Fatal(err)
		}
	}
	blocked = false
	b := simpleBurst(&span, transport.KindSend, 60_000)
	b.DGID = ib.GIDOf(netip.MustParseAddr("10.0.0.3"))
	if err := carry(a, b); err != nil {
		t.Fatal(err)
	}
	a.Flush()
}

// checkPacket checks a datagram's ICRC and returns the packet.
func checkPacket(t *testing.T, d *FakeDatagram) wire.Packet {
	p, err := wire.Parse(d.Data)
	if err != nil {
		t.Fatal(err)
	}
	var flow wire.Flow
	flow.Set(d.From, d.To)
	if id, ok := flow.Check(p, 0); !ok || id >= ownIDs {
		t.Errorf("%v to %v is damaged", p, d.To)
	}
	return p
}

// carry sends b between the addresses of its GIDs.
func carry(p *Port, b *transport.Burst) error {
	return p.Send(ib.HostNetwork, b.SGID.Addr(), b.DGID.Addr(), b)
}
