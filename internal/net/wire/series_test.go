package wire

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"testing"
)

// middle makes a middle packet of a message with Make and Seal.
func middle(f *Flow, n, filler int, psn uint32, id uint16, fill byte) Packet {
	p := MakeFilled(make([]byte, MaxPacket+MaxFiller), RCWriteMiddle, n, filler)
	p.BTH().SetDestQP(0xabcdef)
	p.BTH().SetPKey(0x8001)
	p.BTH().SetMigrated(true)
	p.BTH().SetPSN(psn)
	for i := range p.Payload() {
		p.Payload()[i] = fill + byte(i)
	}
	f.Seal(p, id)
	return p
}

// TestSeries checks that a Series makes and accepts the same packets as Make, Parse and Flow.
func TestSeries(t *testing.T) {
	for _, c := range []struct {
		name     string
		src, dst netip.AddrPort
		n, fill  int
		psn      uint32
	}{
		{"IPv4", src4, dst4, 1024, 0, 100},
		{"with filler", src4, dst4, 1024, 16, 0x00fffe},
		{"across the end of PSNs", src4, dst4, 256, 16, psnMask - 2},
		{"IPv6", src6, dst6, 4096, 0, 0x12fffe},
		{"with long filler", src4, dst4, 2048, 300, 7},
		{"as with an immediate", src4, dst4, 4096, 20, 7},
		{"padding", src4, dst4, 41, 0, 7},
		{"short", src4, dst4, 4, 0, 7},
	} {
		t.Run(c.name, func(t *testing.T) {
			var f Flow
			f.Set(c.src, c.dst)
			make1, ok1 := f.Series(middle(&f, c.n, c.fill, c.psn, 1, 0))
			fill, _ := f.Series(middle(&f, c.n, c.fill, c.psn, 1, 0))
			take, ok2 := f.Series(middle(&f, c.n, c.fill, c.psn, 1, 0))
			if !ok1 || !ok2 {
				t.Fatal("no series")
			}
			buf, room := make([]byte, MaxPacket), make([]byte, MaxPacket)
			for i := range 5 {
				want := middle(&f, c.n, c.fill, (c.psn+1+uint32(i))&psnMask, uint16(300*i), byte(i))
				p := make1.Make(buf)
				copy(p.Payload(), want.Payload())
				make1.Seal(uint16(300 * i))
				if !bytes.Equal(p.Bytes(), want.Bytes()) {
					t.Fatalf("packet %d is\n%x, want\n%x", i, p.Bytes(), want.Bytes())
				}
				q := fill.Make(room)
				fill.Fill(want.Payload(), uint16(300*i))
				if !bytes.Equal(q.Bytes(), want.Bytes()) {
					t.Fatalf("packet %d, filled, is\n%x, want\n%x", i, q.Bytes(), want.Bytes())
				}
				payload, ok := take.Check(p.Bytes(), uint16(300*i))
				if !ok || !bytes.Equal(payload, want.Payload()) {
					t.Fatalf("packet %d is not taken: %v", i, ok)
				}
			}
		})
	}
}

// TestSeriesRefuses checks that a Series rejects a packet that differs in any byte.
func TestSeriesRefuses(t *testing.T) {
	var f Flow
	f.Set(src4, dst4)
	s, _ := f.Series(middle(&f, 64, 16, 5, 0, 0))
	good := middle(&f, 64, 16, 6, 9, 0).Bytes()
	for i := range good {
		bad := bytes.Clone(good)
		bad[i] ^= 0x10
		if _, ok := s.Check(bad, 9); ok {
			t.Errorf("byte %d changed, and it is taken", i)
		}
	}
	for _, bad := range [][]byte{nil, good[:10], good[:len(good)-4], append(bytes.Clone(good), 0, 0, 0, 0)} {
		if _, ok := s.Check(bad, 9); ok {
			t.Errorf("%d bytes are taken", len(bad))
		}
	}
	if _, ok := s.Check(good, 8); ok {
		t.Error("another identification is taken")
	}
	if _, ok := s.Check(good, 9); !ok {
		t.Error("the next packet is not taken")
	}
	if _, ok := s.Check(good, 9); ok {
		t.Error("the same packet is taken twice")
	}
	for _, o := range []Opcode{RCWriteFirst, RCWriteLast, RCSendOnly, RCAck, UDSendOnly, CNP} {
		p := Make(make([]byte, MaxPacket), o, max(0, byOpcode[o].payload))
		if _, ok := f.Series(p); ok {
			t.Errorf("%v begins a series", o)
		}
	}
	odd := middle(&f, 64, 0, 5, 0, 0)
	odd.BTH().SetFiller(16) // but there is no filler
	if _, ok := f.Series(odd); ok {
		t.Error("a packet with reserved bits begins a series")
	}
}

// FuzzSeries checks that Parse and Check accept every packet that a Series accepts, with the same payload.
func FuzzSeries(f *testing.F) {
	var flow Flow
	flow.Set(src4, dst4)
	f.Add(middle(&flow, 64, 16, 5, 0, 0).Bytes(), middle(&flow, 64, 16, 6, 1, 0).Bytes())
	f.Add(middle(&flow, 3, 0, psnMask, 0, 0).Bytes(), middle(&flow, 3, 0, 0, 1, 0).Bytes())
	f.Fuzz(func(t *testing.T, before, next []byte) {
		p, err := Parse(before)
		if err != nil {
			return
		}
		s, ok := flow.Series(p)
		if !ok {
			return
		}
		// Random data has no valid ICRC.
		if len(next) >= BTHSize+ICRCSize && len(next) <= MaxPacket {
			q := Packet{data: next, format: p.format}
			flow.Seal(q, 1)
		}
		payload, ok := s.Check(next, 1)
		if !ok {
			return
		}
		q, err := Parse(next)
		if err != nil || !bytes.Equal(q.Payload(), payload) {
			t.Fatalf("%x after %x is taken; the long way says %v", next, before, err)
		}
		if id, ok := flow.Check(q, 1); !ok || id != 1 {
			t.Fatalf("%x after %x: ICRC of identification %d, %v", next, before, id, ok)
		}
		if q.BTH().PSN() != (p.BTH().PSN()+1)&psnMask || q.BTH().Opcode() != p.BTH().Opcode() {
			t.Fatalf("%x does not follow %x", next, before)
		}
	})
}

func BenchmarkSeries(b *testing.B) {
	for _, n := range []int{1024, 4096} {
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			var f Flow
			f.Set(src4, dst4)
			p := middle(&f, n, 16, rand.Uint32N(psnMask), 0, 0)
			out, _ := f.Series(p)
			in, _ := f.Series(p)
			buf, payload := make([]byte, MaxPacket), make([]byte, n)
			b.SetBytes(int64(n))
			b.ReportAllocs()
			for b.Loop() {
				q := out.Make(buf)
				out.Fill(payload, 3)
				if _, ok := in.Check(q.Bytes(), 3); !ok {
					b.Fatal("not taken")
				}
			}
		})
	}
}
