package wire

import (
	"bytes"
	"encoding/binary"
	"testing"
)

// TestFiller checks that filler is not part of the payload, and that data that only looks like filler is.
func TestFiller(t *testing.T) {
	filled := func(payload string, filler int) []byte {
		p := MakeFilled(make([]byte, MaxPacket), RCWriteMiddle, len(payload), filler)
		copy(p.Payload(), payload)
		return p.Bytes()
	}
	says := func(b []byte, filler int) []byte {
		BTH(b).SetFiller(filler)
		return b
	}
	damaged := func(b []byte) []byte {
		b[len(b)-ICRCSize-1] ^= 1
		return b
	}
	for _, c := range []struct {
		name   string
		data   []byte
		want   string
		filler int
	}{
		{"none", filled("12345678", 0), "12345678", 0},
		{"a word", filled("12345678", 4), "12345678", 4},
		{"a RETH's length", filled("12345678", 16), "12345678", 16},
		{"behind padding", filled("12345", 16), "12345", 16},
		{"behind nothing", filled("", 4), "", 4},
		{"as much as there can be", filled("12345678", MaxFiller), "12345678", MaxFiller},
		{"more than the bits can say", filled("12345678", MaxFiller+4), "12345678", MaxFiller + 4},
		{"much more, behind padding", filled("12345", 2000), "12345", 2000},
		{"more behind nothing", filled("", 2000), "", 2000},
		{"bits without filler", says(filled("12345678", 0), 4), "12345678", 0},
		{"bits without as much filler", says(filled("12345678", 8), 12), "12345678fillfill", 0},
		{"bits for more than there is", says(filled("12345678", 8), MaxFiller), "12345678fillfill", 0},
		{"more filler than the bits say", says(filled("12345678", 8), 4), "12345678fill", 4},
		{"damaged", damaged(filled("12345678", 8)), "12345678fillfilm", 0},
	} {
		p, err := Parse(c.data)
		if err != nil {
			t.Errorf("%s: %v", c.name, err)
			continue
		}
		if got := string(p.Payload()); got != c.want || p.Filler() != c.filler {
			t.Errorf("%s: payload %q and %d bytes of filler, want %q and %d", c.name, got, p.Filler(), c.want, c.filler)
		}
	}
}

// TestLongFillerDoubted checks that the bits for long filler are ignored if the filler is missing or its length is invalid.
func TestLongFillerDoubted(t *testing.T) {
	const n, filler = 1000, 600
	for _, c := range []struct {
		name   string
		change func(end []byte) // the last two words of filler
		want   int
	}{
		{"as it is", func([]byte) {}, n},
		{"a longer one", func(end []byte) { binary.BigEndian.PutUint32(end[4:], n+filler) }, 0},
		{"longer than there is room", func(end []byte) { binary.BigEndian.PutUint32(end[4:], n+filler+4) }, n + filler},
		{"longer than any number", func(end []byte) { binary.BigEndian.PutUint32(end[4:], 1<<32-4) }, n + filler},
		{"short", func(end []byte) { binary.BigEndian.PutUint32(end[4:], MaxFiller) }, n + filler},
		{"none", func(end []byte) { binary.BigEndian.PutUint32(end[4:], 0) }, n + filler},
		{"no multiple of four", func(end []byte) { binary.BigEndian.PutUint32(end[4:], filler+2) }, n + filler},
		{"no filler", func(end []byte) { end[0] ^= 1 }, n + filler},
	} {
		p := MakeFilled(make([]byte, MaxPacket), RCSendLast, n, filler)
		b := p.Bytes()
		c.change(b[len(b)-ICRCSize-2*fillerWord:])
		q, err := Parse(b)
		if err != nil || len(q.Payload()) != c.want {
			t.Errorf("%s: payload of %d bytes, %v; want %d", c.name, len(q.Payload()), err, c.want)
		}
	}
	// A packet that is too short for long filler.
	p := Make(make([]byte, MaxPacket), RCSendLast, 4)
	p.BTH().SetFiller(bthFillerMask * fillerWord)
	if q, err := Parse(p.Bytes()); err != nil || len(q.Payload()) != 4 {
		t.Errorf("a short packet: payload of %d bytes, %v", len(q.Payload()), err)
	}
}

// TestLongFillerIsClean checks that filler contains nothing of the buffer's previous content.
func TestLongFillerIsClean(t *testing.T) {
	buf := bytes.Repeat([]byte{0xa5}, MaxPacket)
	p := MakeFilled(buf, RCWriteLast, 100, 2000)
	if b := p.Bytes(); bytes.IndexByte(b[BTHSize+100:len(b)-ICRCSize], 0xa5) >= 0 {
		t.Error("filler holds what was in the buffer")
	}
}

// TestFillerRefused checks that opcodes without payload accept no filler.
func TestFillerRefused(t *testing.T) {
	filled := func(o Opcode, n, filler int) Packet { return MakeFilled(make([]byte, 2*MaxPacket), o, n, filler) }
	for _, c := range []struct {
		name string
		p    Packet
		ok   bool
	}{
		{"acknowledgement", filled(RCAck, 0, 8), false},
		{"longer than any packet", filled(RCWriteMiddle, MaxPayload, MaxFiller), false},
		{"as long as a first packet", filled(RCWriteMiddle, MaxPayload, RETHSize), true},
	} {
		if _, err := Parse(c.p.Bytes()); (err == nil) != c.ok {
			t.Errorf("%s: %v, want it to be accepted: %v", c.name, err, c.ok)
		}
	}
}

// TestFillerBits checks that the filler length and the acknowledge request share a byte.
func TestFillerBits(t *testing.T) {
	b := BTH(make([]byte, BTHSize))
	for _, n := range []int{MaxFiller, fillerWord, 0} {
		for _, ack := range []bool{true, false} {
			b.SetAckReq(ack)
			b.SetFiller(n)
			if b.Filler() != n || b.AckReq() != ack || b.PSN() != 0 || b.DestQP() != 0 {
				t.Errorf("filler %d, ackreq %v: read back as %d, %v", n, ack, b.Filler(), b.AckReq())
			}
		}
	}
}
