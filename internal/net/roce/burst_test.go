package roce

import (
	"bytes"
	"math/rand/v2"
	"net/netip"
	"slices"
	"testing"

	"vrdma.dev/vrdma/internal/device/memory"
	"vrdma.dev/vrdma/internal/device/transport"
	"vrdma.dev/vrdma/internal/ib"
	"vrdma.dev/vrdma/internal/net/wire"
)

var (
	addr4a = netip.MustParseAddrPort("10.0.0.1:49152")
	addr4b = netip.MustParseAddrPort("10.0.0.2:4791")
)

// randomBurst returns a burst like one of the transport, with data in random pieces.
func randomBurst(r *rand.Rand, span *memory.Span) (b transport.Burst, data []byte) {
	m := messages[r.IntN(len(messages))]
	b = transport.Burst{
		Type: m.typ, Kind: m.kind, First: true, Last: true, Packets: 1,
		AckReq: r.IntN(2) == 0, Migrated: r.IntN(2) == 0,
		Dst: r.Uint32() & ib.PSNMask, PKey: uint16(r.Uint32()), MTU: 256 << r.IntN(5), PSN: r.Uint32() & ib.PSNMask,
		SGID: ib.GIDOf(addr4a.Addr()), DGID: ib.GIDOf(addr4b.Addr()),
	}
	if r.IntN(4) == 0 {
		b.PSN = ib.PSNMask - r.Uint32N(20) // over the wrap
	}
	n := 0
	if carriesData(b.Kind) {
		switch {
		case b.Type == ib.UD:
			n = r.IntN(int(b.MTU) + 1)
		case r.IntN(4) == 0:
			n = r.IntN(9)
		default:
			n = r.IntN(100 * int(b.MTU))
		}
		if m.first != never {
			b.First, b.Last = r.IntN(3) > 0, r.IntN(3) > 0
			if !b.Last || n == 0 && !b.First || r.IntN(4) == 0 {
				n += int(b.MTU) - n%int(b.MTU)
			}
			b.Packets = uint32(max(1, (n+int(b.MTU)-1)/int(b.MTU)))
		}
	}
	b.Solicited = b.Last && r.IntN(2) == 0
	fillHeaders(r, &b)
	data = make([]byte, n)
	for i := range data {
		data[i] = byte(r.Uint32())
	}
	span.Reset()
	for rest := data; len(rest) > 0; {
		k := 1 + r.IntN(len(rest))
		span.Add(rest[:k])
		rest = rest[k:]
	}
	b.Data = span
	return b, data
}

// fillHeaders sets only the fields that the burst's packets carry.
func fillHeaders(r *rand.Rand, b *transport.Burst) {
	switch b.Kind {
	case transport.KindSendImm, transport.KindSendInv, transport.KindWriteImm:
		if b.Last {
			b.Imm = r.Uint32()
		} else if b.Kind == transport.KindWriteImm {
			b.Kind = transport.KindWrite
		} else {
			b.Kind = transport.KindSend
		}
	case transport.KindFlush:
		b.Imm = r.Uint32()
	case transport.KindAck, transport.KindAtomicResp, transport.KindReadResp:
		if b.First || b.Last {
			b.Syndrome, b.MSN = uint8(r.Uint32()), r.Uint32()&ib.PSNMask
		}
	}
	switch b.Kind {
	case transport.KindWrite, transport.KindWriteImm, transport.KindReadReq, transport.KindFlush, transport.KindAtomicWrite:
		if b.First {
			b.VA, b.RKey, b.Length = r.Uint64(), r.Uint32(), r.Uint32()
		}
	case transport.KindCmpSwap, transport.KindFetchAdd:
		b.VA, b.RKey, b.Compare = r.Uint64(), r.Uint32(), r.Uint64()
	}
	switch b.Kind {
	case transport.KindCmpSwap, transport.KindFetchAdd, transport.KindAtomicWrite:
		b.Swap = r.Uint64()
	case transport.KindAtomicResp:
		b.Orig = r.Uint64()
	}
	if b.Type == ib.UD {
		b.Src, b.QKey = r.Uint32()&ib.PSNMask, r.Uint32()
	}
}

// TestRoundTrip splits random bursts and joins the packets again.
func TestRoundTrip(t *testing.T) {
	r := rand.New(rand.NewPCG(3, 4))
	var c Cutter
	var j Joiner
	var span memory.Span
	buf := make([]byte, MaxMessage)
	for i := range 1500 {
		b, data := randomBurst(r, &span)
		limit, room := 1+r.IntN(MaxSegments), wire.MaxPacket+r.IntN(MaxMessage-wire.MaxPacket+1)
		c.filler = i%2 == 1
		if err := c.Start(&b, addr4a, addr4b); err != nil {
			t.Fatalf("burst %d, %+v: %v", i, b, err)
		}
		began := false
		var packets [][]byte
		for {
			n, segment, err := c.Next(buf[:room], limit)
			if err != nil {
				t.Fatal(err)
			}
			if n == 0 {
				break
			}
			count := 0
			for at := 0; at < n; at += segment {
				packets = append(packets, bytes.Clone(buf[at:min(n, at+segment)]))
				count++
			}
			if count > limit || n > room || segment > n {
				t.Fatalf("burst %d: a run of %d packets of %d bytes, %d in all; at most %d and %d", i, count, segment, n, limit, room)
			}
		}
		for _, data := range packets {
			p, err := wire.Parse(data)
			if err != nil {
				t.Fatal(err)
			}
			if !began {
				began = j.Begin(p, b.SGID, b.DGID)
			} else if !j.Extend(p) {
				t.Fatalf("burst %d: %v does not follow %d packets of %+v", i, p, len(packets), j.Burst())
			}
		}
		compareBursts(t, i, j.Burst(), &b, data)
	}
}

func compareBursts(t *testing.T, i int, got, want *transport.Burst, data []byte) {
	t.Helper()
	if flat := flatten(got.Data); !bytes.Equal(flat, data) {
		t.Errorf("burst %d: %d bytes differ from the %d sent", i, len(flat), len(data))
	}
	g, w := *got, *want
	g.Data, w.Data = nil, nil
	if w.Packets == 1 {
		g.MTU, w.MTU = 0, 0 // a single packet does not show the MTU
	}
	if g != w {
		t.Errorf("burst %d:\n got %+v\nwant %+v", i, g, w)
	}
}

func flatten(s *memory.Span) (out []byte) {
	for _, p := range s.Pieces() {
		out = append(out, p.Mem...)
	}
	return out
}

// TestCutRefuses checks that malformed bursts are not sent.
func TestCutRefuses(t *testing.T) {
	var span memory.Span
	span.Add(make([]byte, 1000))
	for _, c := range []struct {
		name string
		b    transport.Burst
	}{
		{"nothing", transport.Burst{}},
		{"no such kind", transport.Burst{Type: ib.UC, Kind: transport.KindReadReq, Packets: 1, First: true, Last: true}},
		{"kind out of range", transport.Burst{Type: ib.RC, Kind: 99, Packets: 1, First: true, Last: true}},
		{"no packets", transport.Burst{Type: ib.RC, Kind: transport.KindSend, First: true, Last: true}},
		{"two acknowledgements", transport.Burst{Type: ib.RC, Kind: transport.KindAck, Packets: 2, First: true, Last: true}},
		{"READ with data", transport.Burst{Type: ib.RC, Kind: transport.KindReadReq, Packets: 1, First: true, Last: true, Data: &span}},
		{"too few packets", transport.Burst{Type: ib.RC, Kind: transport.KindSend, Packets: 3, MTU: 256, First: true, Last: true, Data: &span}},
		{"too many packets", transport.Burst{Type: ib.RC, Kind: transport.KindSend, Packets: 5, MTU: 256, First: true, Last: true, Data: &span}},
		{"middle not full", transport.Burst{Type: ib.RC, Kind: transport.KindSend, Packets: 4, MTU: 256, First: true, Data: &span}},
		{"UD in pieces", transport.Burst{Type: ib.UD, Kind: transport.KindSend, Packets: 4, MTU: 256, First: true, Last: true, Data: &span}},
		{"packet too long", transport.Burst{Type: ib.RC, Kind: transport.KindSend, Packets: 1, MTU: 8192, First: true, Last: true, Data: tooLong()}},
	} {
		var cut Cutter
		if err := cut.Start(&c.b, addr4a, addr4b); err == nil {
			t.Errorf("%s: accepted", c.name)
		}
		if n, _, _ := cut.Next(make([]byte, MaxMessage), 1); n != 0 {
			t.Errorf("%s: %d bytes in spite of the error", c.name, n)
		}
	}
}

func tooLong() *memory.Span {
	s := new(memory.Span)
	s.Add(make([]byte, 5000))
	return s
}

// TestExtendRefuses changes one property of a packet that would fit.
func TestExtendRefuses(t *testing.T) {
	first := wire.Make(make([]byte, 5000), wire.RCSendFirst, 1024)
	first.BTH().SetPSN(ib.PSNMask)
	next := func(o wire.Opcode, n int) wire.Packet { return wire.Make(make([]byte, 5000), o, n) }
	for _, c := range []struct {
		name   string
		packet wire.Packet
		change func(p wire.Packet)
		fits   bool
	}{
		{"middle", next(wire.RCSendMiddle, 1024), func(wire.Packet) {}, true},
		{"last", next(wire.RCSendLast, 1), func(wire.Packet) {}, true},
		{"last with immediate", next(wire.RCSendLastImm, 1024), func(wire.Packet) {}, true},
		{"gap", next(wire.RCSendMiddle, 1024), func(p wire.Packet) { p.BTH().SetPSN(1) }, false},
		{"another queue pair", next(wire.RCSendMiddle, 1024), func(p wire.Packet) { p.BTH().SetDestQP(1) }, false},
		{"another partition", next(wire.RCSendMiddle, 1024), func(p wire.Packet) { p.BTH().SetPKey(1) }, false},
		{"short middle", next(wire.RCSendMiddle, 1020), func(wire.Packet) {}, false},
		{"long last", next(wire.RCSendLast, 1025), func(wire.Packet) {}, false},
		{"empty last", next(wire.RCSendLast, 0), func(wire.Packet) {}, false},
		{"another first", next(wire.RCSendFirst, 1024), func(wire.Packet) {}, false},
		{"only", next(wire.RCSendOnly, 1024), func(wire.Packet) {}, false},
		{"of a write", next(wire.RCWriteMiddle, 1024), func(wire.Packet) {}, false},
		{"of UC", next(wire.UCSendMiddle, 1024), func(wire.Packet) {}, false},
		{"acknowledgement", next(wire.RCAck, 0), func(wire.Packet) {}, false},
		{"CNP", next(wire.CNP, 16), func(wire.Packet) {}, false},
	} {
		var j Joiner
		if !j.Begin(first, ib.GID{}, ib.GID{}) {
			t.Fatal("no burst begins with a Send First")
		}
		c.change(c.packet)
		if got := j.Extend(c.packet); got != c.fits {
			t.Errorf("%s: got %v, want %v", c.name, got, c.fits)
		}
	}
	var j Joiner
	if j.Begin(next(wire.CNP, 16), ib.GID{}, ib.GID{}) {
		t.Error("a CNP makes a burst")
	}
	first.BTH().SetAckReq(true)
	j.Begin(first, ib.GID{}, ib.GID{})
	if j.Extend(next(wire.RCSendMiddle, 1024)) {
		t.Error("a burst goes on behind a packet that asks for an acknowledgement")
	}
}

// TestRuns checks which packets share a send call.
func TestRuns(t *testing.T) {
	var span memory.Span
	span.Add(make([]byte, 65536))
	for _, c := range []struct {
		name string
		kind transport.Kind
		mtu  uint32
		want []int // packets in each run
		fill []int // packets in each run with filler
	}{
		{"send 4096", transport.KindSend, 4096, []int{15, 1}, []int{15, 1}},
		{"write 4096", transport.KindWrite, 4096, []int{2, 14}, []int{15, 1}}, // the second is the shorter one
		{"write 1024", transport.KindWrite, 1024, []int{2, 62}, []int{62, 2}},
		{"write 1024 with immediate", transport.KindWriteImm, 1024, []int{2, 61, 1}, []int{62, 2}},
		{"read response 1024", transport.KindReadResp, 1024, []int{2, 61, 1}, []int{62, 2}},
		{"send 256", transport.KindSend, 256, []int{64, 64, 64, 64}, []int{64, 64, 64, 64}},
	} {
		b := transport.Burst{Type: ib.RC, Kind: c.kind, First: true, Last: true, Packets: 65536 / c.mtu, MTU: c.mtu, Data: &span}
		for _, filler := range []bool{false, true} {
			cut, want := Cutter{filler: filler}, c.want
			if filler {
				want = c.fill
			}
			if got := runs(t, &cut, &b); !slices.Equal(got, want) {
				t.Errorf("%s, filler %v: got runs of %v packets, want %v", c.name, filler, got, want)
			}
		}
	}
}

// runs returns the number of packets of each run of a burst.
func runs(t *testing.T, cut *Cutter, b *transport.Burst) (packets []int) {
	t.Helper()
	if err := cut.Start(b, addr4a, addr4b); err != nil {
		t.Fatal(err)
	}
	buf := make([]byte, MaxMessage)
	for range 10 {
		n, segment, err := cut.Next(buf, MaxSegments)
		if err != nil {
			t.Fatal(err)
		}
		if n == 0 {
			break
		}
		packets = append(packets, (n+segment-1)/segment)
	}
	return packets
}

// TestBurstAllocations splits and joins 64 KiB.
func TestBurstAllocations(t *testing.T) {
	var span memory.Span
	span.Add(make([]byte, 65536))
	b := transport.Burst{Type: ib.RC, Kind: transport.KindWrite, First: true, Last: true, Packets: 16, MTU: 4096, Data: &span}
	var c Cutter
	var j Joiner
	buf := make([]byte, MaxMessage)
	if n := testing.AllocsPerRun(20, func() { cutAndJoin(t, &b, &c, &j, buf) }); n != 0 {
		t.Errorf("%v allocations a burst", n)
	}
}

func cutAndJoin(t testing.TB, b *transport.Burst, c *Cutter, j *Joiner, buf []byte) {
	if err := c.Start(b, addr4a, addr4b); err != nil {
		t.Fatal(err)
	}
	for {
		n, segment, err := c.Next(buf, MaxSegments)
		if err != nil {
			t.Fatal(err)
		}
		if n == 0 {
			return
		}
		for at := 0; at < n; at += segment {
			p, err := wire.Parse(buf[at:min(n, at+segment)])
			if err != nil {
				t.Fatal(err)
			}
			if at == 0 || !j.Extend(p) {
				j.Begin(p, b.SGID, b.DGID)
			}
		}
	}
}

func BenchmarkCut(b *testing.B) {
	var span memory.Span
	span.Add(make([]byte, 65536))
	burst := transport.Burst{Type: ib.RC, Kind: transport.KindWrite, First: true, Last: true, Packets: 64, MTU: 1024, Data: &span}
	var c Cutter
	var j Joiner
	buf := make([]byte, MaxMessage)
	b.SetBytes(65536)
	b.ReportAllocs()
	for b.Loop() {
		cutAndJoin(b, &burst, &c, &j, buf)
	}
}
