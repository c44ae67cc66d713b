package roce

import (
	"bytes"
	"net/netip"
	"testing"

	"vrdma.dev/vrdma/internal/device/memory"
	"vrdma.dev/vrdma/internal/device/transport"
	"vrdma.dev/vrdma/internal/ib"
	"vrdma.dev/vrdma/internal/net/wire"
)

// calledFor returns the number of messages that a needed for what fill sends, and what arrived at b.
func calledFor(t *testing.T, a, b *Port, fill func(send func(*transport.Burst))) (uint64, *sink) {
	t.Helper()
	before := a.Counters().SentCalls
	fill(func(w *transport.Burst) {
		if err := carry(a, w); err != nil {
			t.Fatal(err)
		}
	})
	a.Flush()
	s := &sink{t: t}
	drain(b, s)
	return a.Counters().SentCalls - before, s
}

// TestFiller checks that only a peer that understands filler gets it, and that a stream of WRITEs then needs as few messages as SENDs.
func TestFiller(t *testing.T) {
	const count, size = 8, 64 << 10
	_, a, b := pair(FakeOptions{})
	var span memory.Span
	for _, c := range []struct {
		filler bool
		kind   transport.Kind
		calls  uint64
	}{{false, transport.KindSend, 9}, {false, transport.KindWrite, 16}, {true, transport.KindWrite, 9}, {false, transport.KindWrite, 16}} {
		a.SetFiller(hostB, c.filler)
		calls, s := calledFor(t, a, b, func(send func(*transport.Burst)) {
			for i := range uint32(count) {
				w := simpleBurst(&span, c.kind, size)
				w.PSN += i * w.Packets
				send(w)
			}
		})
		if calls != c.calls {
			t.Errorf("%+v: %d messages, want %d", c, calls, c.calls)
		}
		if len(s.bursts) != count {
			t.Fatalf("%+v: %d bursts arrived, want %d", c, len(s.bursts), count)
		}
		for i, d := range s.data {
			if !bytes.Equal(d, bytes.Repeat([]byte{0x5a}, size)) {
				t.Errorf("%+v: burst %d of %d bytes differs from what was sent", c, i, len(d))
			}
		}
	}
	if c := b.Counters(); c.Malformed+c.BadICRC != 0 {
		t.Errorf("counters %+v", c)
	}
}

// TestFillerStays checks that a peer that does not understand filler never gets it, whatever was sent to other peers before.
func TestFillerStays(t *testing.T) {
	hostC := netip.MustParseAddr("10.0.0.3")
	to := func(b *transport.Burst, peer netip.Addr) *transport.Burst {
		b.DGID = ib.GIDOf(peer)
		return b
	}
	for _, c := range []struct {
		name    string
		between func(a *Port)
	}{
		{"nothing", func(*Port) {}},
		{"a notification", func(a *Port) { a.SendCNP(ib.HostNetwork, hostA, hostC, 7, 9) }},
		{"no burst at all", func(a *Port) {
			for _, b := range []*transport.Burst{simpleBurst(new(memory.Span), transport.KindSend, 1), {SGID: ib.GIDOf(hostA), DGID: ib.GIDOf(hostB)}} {
				if b.Packets > 0 {
					b = to(b, hostC)
				}
				if err := carry(a, b); (err == nil) != (b.Packets > 0) {
					t.Errorf("burst of %d packets: %v", b.Packets, err)
				}
			}
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			n := NewFakeNet()
			a := NewPort(n.Bind(FakeOptions{}, hostA))
			a.SetFiller(hostB, true)
			filled := map[netip.Addr]int{}
			n.Way = func(d *FakeDatagram) {
				if checkPacket(t, d).Filler() > 0 {
					filled[d.To.Addr()]++
				}
			}
			var span memory.Span
			send := func(peer netip.Addr) {
				if err := carry(a, to(simpleBurst(&span, transport.KindWrite, 4096), peer)); err != nil {
					t.Fatal(err)
				}
			}
			send(hostC)
			send(hostB)
			c.between(a)
			send(hostC)
			a.Flush()
			if filled[hostB] != 3 || filled[hostC] != 0 {
				t.Errorf("packets with filler: %v; want 3 to %v and no other", filled, hostB)
			}
		})
	}
}

// TestLongFiller sends the messages of 2 to 64 KiB that rsockets makes of a block of 128 KiB. To a peer that understands long filler they
// need the minimum number of messages. A short message without a successor gets no filler.
func TestLongFiller(t *testing.T) {
	_, a, b := pair(FakeOptions{})
	a.SetFiller(hostB, true)
	block := []int{2, 4, 8, 16, 32, 64, 2}
	const mtu = 4096
	for _, c := range []struct {
		long  bool
		calls uint64
	}{{false, 16}, {true, 9}} {
		a.SetLongFiller(hostB, c.long)
		var want [][]byte
		calls, s := calledFor(t, a, b, func(send func(*transport.Burst)) {
			var span memory.Span
			psn := uint32(0)
			for i := range 4 * len(block) {
				n := block[i%len(block)] << 10
				w := simpleBurst(&span, transport.KindWriteImm, n)
				w.AckReq, w.MTU, w.Packets, w.PSN = false, mtu, uint32(max(n/mtu, 1)), psn
				for k := range span.Pieces()[0].Mem {
					span.Pieces()[0].Mem[k] = byte(i + k*7)
				}
				want = append(want, bytes.Clone(span.Pieces()[0].Mem))
				psn += w.Packets
				send(w)
			}
		})
		if calls != c.calls {
			t.Errorf("%+v: %d messages, want %d", c, calls, c.calls)
		}
		var got []byte
		for _, d := range s.data {
			got = append(got, d...)
		}
		if !bytes.Equal(got, bytes.Join(want, nil)) {
			t.Fatalf("%+v: %d bytes arrived in %d bursts that are not those sent", c, len(got), len(s.bursts))
		}
	}
	if c := b.Counters(); c.Malformed+c.BadICRC != 0 {
		t.Errorf("counters %+v", c)
	}
	for _, c := range []struct {
		name string
		n    int
		ask  bool
		kind transport.Kind
		want int // bytes of UDP payload
	}{
		{"nothing follows", 2048, true, transport.KindWriteImm, wire.Size(wire.RCWriteOnlyImm, 2048)},
		{"others follow", 2048, false, transport.KindWriteImm, wire.MaxPacket},
		{"others follow, less than half", 2000, false, transport.KindWriteImm, wire.Size(wire.RCWriteOnlyImm, 2000)},
		{"a response", 2048, false, transport.KindReadResp, wire.Size(wire.RCReadRespOnly, 2048)},
	} {
		var span memory.Span
		w := simpleBurst(&span, c.kind, c.n)
		w.AckReq, w.MTU, w.Packets = c.ask, mtu, 1
		before := a.Counters().SentBytes
		if err := carry(a, w); err != nil {
			t.Fatal(err)
		}
		a.Flush()
		if got := a.Counters().SentBytes - before; got != uint64(c.want) {
			t.Errorf("%s: a message of %d bytes is %d, want %d", c.name, c.n, got, c.want)
		}
	}
}
