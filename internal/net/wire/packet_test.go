package wire

import (
	"bytes"
	"errors"
	"math/rand/v2"
	"net/netip"
	"strings"
	"testing"
)

// TestOpcodes compares the table with the specification's general rules for opcodes.
func TestOpcodes(t *testing.T) {
	seen := map[Opcode]bool{}
	for i := range formats {
		f := &formats[i]
		if seen[f.Opcode] {
			t.Errorf("opcode %#x is there twice", uint8(f.Opcode))
		}
		seen[f.Opcode] = true
		if f.Opcode.Format() != f || f.Opcode.String() != f.Name {
			t.Errorf("%s: not found by its opcode %#x", f.Name, uint8(f.Opcode))
		}
		service := map[byte]Service{0: RC, 1: UC, 3: UD, 4: Congestion}[byte(f.Opcode)>>5]
		if f.Service != service {
			t.Errorf("%s: service %d, the upper bits of the opcode say %d", f.Name, f.Service, service)
		}
		if name := strings.HasSuffix(f.Name, "Immediate"); name != (f.Headers&HasImmDt != 0) {
			t.Errorf("%s: headers %#x", f.Name, f.Headers)
		}
		for word, position := range map[string]Position{" First": First, " Middle": Middle, " Last": Last, " Only": Only} {
			if strings.Contains(f.Name, word) && f.Position != position {
				t.Errorf("%s: position %d, want %d", f.Name, f.Position, position)
			}
		}
		if f.Operation == Write && f.Position&First != 0 != (f.Headers&HasRETH != 0) {
			t.Errorf("%s: an RETH belongs to the first packet of a write", f.Name)
		}
		if f.Operation == ReadResponse && f.Position != Middle != (f.Headers&HasAETH != 0) {
			t.Errorf("%s: an AETH belongs to the first and last packet of a response", f.Name)
		}
		size := BTHSize
		for h := range numHeaders {
			if f.Headers&(1<<h) != 0 {
				size += int(headerSize[h])
			}
		}
		if f.Size() != size {
			t.Errorf("%s: headers of %d bytes, want %d", f.Name, f.Size(), size)
		}
		if f.HasPayload() && f.Size()+MaxPayload+ICRCSize > MaxPacket {
			t.Errorf("%s: %d bytes of headers, more than MaxPacket allows for", f.Name, f.Size())
		}
	}
	// UC has the first twelve operations of RC, with the same numbers, positions and headers.
	for o := RCSendFirst; o <= RCWriteOnlyImm; o++ {
		r, u := o.Format(), (o | UCSendFirst).Format()
		if u == nil || r.Operation != u.Operation || r.Position != u.Position || r.Headers != u.Headers {
			t.Errorf("%v and %v differ in more than the service", r.Name, u)
		}
	}
	if len(seen) != 25+12+2+1 {
		t.Errorf("%d opcodes", len(seen))
	}
}

// TestLayout writes every header of every opcode and checks its position in the packet.
func TestLayout(t *testing.T) {
	for _, c := range []struct {
		op      Opcode
		payload int
		want    string // hex, "." is payload
	}{
		{RCSendOnly, 3, "04 10 0000 00 000000 00000000 ... 00"},
		{RCWriteOnlyImm, 1, "0b 30 0000 00 000000 00000000 0102030405060708 090a0b0c 0d0e0f10 11121314 . 000000"},
		{RCFlush, 0, "1c 00 0000 00 000000 00000000 00000021 0102030405060708 090a0b0c 0d0e0f10"},
		{RCAtomicWrite, 8, "1d 00 0000 00 000000 00000000 0102030405060708 090a0b0c 0d0e0f10 ........"},
		{RCCompareSwap, 0, "13 00 0000 00 000000 00000000 2122232425262728 292a2b2c 3132333435363738 4142434445464748"},
		{RCAtomicAck, 0, "12 00 0000 00 000000 00000000 51525354 6162636465666768"},
		{RCSendLastInv, 4, "16 00 0000 00 000000 00000000 71727374 ...."},
		{UDSendOnlyImm, 2, "65 20 0000 00 000000 00000000 81828384 00868788 11121314 .. 0000"},
	} {
		buf := bytes.Repeat([]byte{0xee}, MaxPacket)
		p := Make(buf, c.op, c.payload)
		if h := p.RETH(); h != nil {
			h.SetVA(0x0102030405060708)
			h.SetRKey(0x090a0b0c)
			h.SetLength(0x0d0e0f10)
		}
		if h := p.ImmDt(); h != nil {
			h.SetData(0x11121314)
		}
		if h := p.FETH(); h != nil {
			h.SetPlacement(FlushGlobal)
			h.SetSelectivity(2)
		}
		if h := p.AtomicETH(); h != nil {
			h.SetVA(0x2122232425262728)
			h.SetRKey(0x292a2b2c)
			h.SetSwap(0x3132333435363738)
			h.SetCompare(0x4142434445464748)
		}
		if h := p.AETH(); h != nil {
			h.SetSyndrome(0x51)
			h.SetMSN(0x525354)
		}
		if h := p.AtomicAckETH(); h != nil {
			h.SetOrig(0x6162636465666768)
		}
		if h := p.IETH(); h != nil {
			h.SetRKey(0x71727374)
		}
		if h := p.DETH(); h != nil {
			h.SetQKey(0x81828384)
			h.SetSrcQP(0xff868788)
		}
		want := unhex(c.want)
		if got := p.Bytes()[:len(p.Bytes())-ICRCSize]; !bytes.Equal(got, want) {
			t.Errorf("%v:\n got % x\nwant % x", c.op, got, want)
		}
		if len(p.Bytes()) != Size(c.op, c.payload) || len(p.Payload()) != c.payload {
			t.Errorf("%v: %d bytes, %d of payload", c.op, len(p.Bytes()), len(p.Payload()))
		}
	}
}

// unhex decodes hex digits; a point is a byte 0xee.
func unhex(s string) (out []byte) {
	s = strings.ReplaceAll(strings.ReplaceAll(s, " ", ""), ".", "ee")
	for i := 0; i < len(s); i += 2 {
		out = append(out, byte(strings.IndexByte("0123456789abcdef", s[i])<<4|strings.IndexByte("0123456789abcdef", s[i+1])))
	}
	return out
}

func TestBTH(t *testing.T) {
	b := BTH(make([]byte, BTHSize))
	b.SetOpcode(RCSendLast)
	b.SetSolicited(true)
	b.SetMigrated(true)
	b.SetPad(3)
	b.SetPKey(0x8001)
	b.SetFECN(true)
	b.SetDestQP(0xaa123456) // setters cut off excess bits
	b.SetAckReq(true)
	b.SetPSN(0xbb789abc)
	want := []byte{2, 0xf0, 0x80, 1, 0x80, 0x12, 0x34, 0x56, 0x80, 0x78, 0x9a, 0xbc}
	if !bytes.Equal(b, want) {
		t.Errorf("got % x, want % x", []byte(b), want)
	}
	if !b.Solicited() || !b.Migrated() || b.Pad() != 3 || b.PKey() != 0x8001 || !b.FECN() || b.BECN() ||
		b.DestQP() != 0x123456 || !b.AckReq() || b.PSN() != 0x789abc || b.Version() != 0 {
		t.Errorf("% x reads as %v", []byte(b), b)
	}
	b.SetSolicited(false)
	b.SetMigrated(false)
	b.SetPad(0)
	b.SetFECN(false)
	b.SetAckReq(false)
	if b.Solicited() || b.Migrated() || b.Pad() != 0 || b.FECN() || b.AckReq() {
		t.Errorf("% x: not all flags are cleared", []byte(b))
	}
}

func TestParseRefuses(t *testing.T) {
	good := func(o Opcode, n int) []byte { return bytes.Clone(Make(make([]byte, 8192), o, n).Bytes()) }
	change := func(b []byte, at int, v byte) []byte { b[at] = v; return b }
	for _, c := range []struct {
		name string
		data []byte
		want error
	}{
		{"nothing", nil, ErrShort},
		{"no ICRC", good(RCSendOnly, 0)[:BTHSize+3], ErrShort},
		{"headers cut", good(RCReadRequest, 0)[:BTHSize+RETHSize], ErrShort},
		{"version", change(good(RCSendOnly, 0), bthFlags, 1), ErrVersion},
		{"RD", change(good(RCSendOnly, 0), bthOpcode, 0x44), ErrOpcode},
		{"RC resync", change(good(RCSendOnly, 0), bthOpcode, 0x15), ErrOpcode},
		{"not a multiple of four", good(RCSendOnly, 8)[:BTHSize+5+ICRCSize], ErrLength},
		{"more pad than payload", change(good(RCSendOnly, 0), bthFlags, 0x30), ErrLength},
		{"too long", good(RCSendOnly, MaxPayload+4), ErrLength},
		{"a byte too long", good(RCSendOnly, MaxPayload+1), ErrLength},
		{"payload where none belongs", append(good(RCAck, 0), 0, 0, 0, 0), ErrLength},
		{"half an atomic write", good(RCAtomicWrite, 4), ErrLength},
		{"CNP without its zeros", good(CNP, 0), ErrLength},
		{"longest", good(RCWriteOnlyImm, MaxPayload), nil},
		{"shortest", good(RCSendOnly, 0), nil},
		{"CNP", good(CNP, 16), nil},
	} {
		if _, err := Parse(c.data); !errors.Is(err, c.want) {
			t.Errorf("%s: got %v, want %v", c.name, err, c.want)
		}
	}
}

func TestPrint(t *testing.T) {
	p := Make(make([]byte, 100), RCWriteOnlyImm, 5)
	p.BTH().SetDestQP(0x11)
	p.BTH().SetPSN(77)
	p.BTH().SetAckReq(true)
	p.BTH().SetSolicited(true)
	p.RETH().SetVA(0x7f00)
	p.RETH().SetRKey(0x1234)
	p.RETH().SetLength(5)
	p.ImmDt().SetData(9)
	want := "RC RDMA Write Only Immediate QP=0x000011 PSN=77 P_Key=0x0000 ackreq solicited va=0x7f00 rkey=0x00001234 length=5 imm=0x00000009 payload=5"
	if got := p.String(); got != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
	p = Make(make([]byte, 100), RCAck, 0)
	p.BTH().SetPKey(0xffff)
	for syndrome, want := range map[uint8]string{
		0x1f: "ACK", NAKSequence: "NAK sequence error", NAKAccess: "NAK remote access error", SyndromeRNR | 12: "RNR NAK timer=12", 0x45: "syndrome=0x45",
	} {
		p.AETH().SetSyndrome(syndrome)
		if got := p.String(); got != "RC Acknowledge QP=0x000000 PSN=0 "+want+" MSN=0" {
			t.Errorf("syndrome %#x: got %s", syndrome, got)
		}
	}
}

var (
	src4 = netip.MustParseAddrPort("10.0.0.1:49152")
	dst4 = netip.MustParseAddrPort("10.0.0.2:4791")
	src6 = netip.MustParseAddrPort("[fe80::1]:49152")
	dst6 = netip.MustParseAddrPort("[fe80::2]:4791")
)

// TestIdentification derives identifications from ICRCs and still detects corruption.
func TestIdentification(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	buf := make([]byte, MaxPacket)
	var flow Flow
	flow.Set(src4, dst4)
	passed, tried := 0, 0
	for range 2000 {
		p := Make(buf, RCWriteOnlyImm, int(r.Uint32N(MaxPayload+1)))
		for i := range p.Payload() {
			p.Payload()[i] = byte(r.Uint32())
		}
		id, guess := uint16(r.Uint32()), uint16(r.Uint32())
		flow.Seal(p, id)
		if got, ok := flow.Check(p, guess); !ok || got != id {
			t.Fatalf("length %d: got %#x, %v, want %#x", len(p.Bytes()), got, ok, id)
		}
		if got, ok := flow.Check(p, id); !ok || got != id {
			t.Fatalf("length %d, right guess: got %#x, %v, want %#x", len(p.Bytes()), got, ok, id)
		}
		for range 10 {
			at, bit := r.IntN(len(p.Bytes())), byte(1)<<r.UintN(8)
			if at == bthECN {
				continue
			}
			p.Bytes()[at] ^= bit
			tried++
			if got, ok := flow.Check(p, 0); ok {
				if passed++; got == id {
					t.Fatalf("length %d: damage at %d not found", len(p.Bytes()), at)
				}
			}
			p.Bytes()[at] ^= bit
		}
	}
	// A 16-bit check lets one packet in 65536 pass, but never one with errors in the first bytes.
	if passed > 5 {
		t.Errorf("%d of %d damaged packets passed with some identification", passed, tried)
	}
}

func TestICRC6(t *testing.T) {
	var flow Flow
	flow.Set(src6, dst6)
	p := Make(make([]byte, MaxPacket), RCSendOnly, 100)
	flow.Seal(p, 1234)
	if id, ok := flow.Check(p, 99); !ok || id != 0 {
		t.Errorf("got %d, %v, want 0, true", id, ok)
	}
	p.Payload()[7]++
	if _, ok := flow.Check(p, 0); ok {
		t.Error("damage not found")
	}
}

func TestAllocations(t *testing.T) {
	buf := make([]byte, MaxPacket)
	var flow Flow
	n := testing.AllocsPerRun(100, func() {
		flow.Set(src4, dst4)
		p := Make(buf, RCWriteOnlyImm, 1000)
		p.BTH().SetPSN(1)
		p.RETH().SetVA(2)
		flow.Seal(p, 17)
		q, err := Parse(p.Bytes())
		if err != nil {
			t.Fatal(err)
		}
		if id, ok := flow.Check(q, 0); !ok || id != 17 {
			t.Fatal(id, ok)
		}
	})
	if n != 0 {
		t.Errorf("%v allocations a packet", n)
	}
}

func BenchmarkCheck(b *testing.B) {
	for _, c := range []struct {
		name  string
		n     int
		guess uint16
	}{{"64/known", 64, 17}, {"64/derived", 64, 0}, {"1024/known", 1024, 17}, {"1024/derived", 1024, 0}, {"4096/known", 4096, 17}} {
		b.Run(c.name, func(b *testing.B) {
			var flow Flow
			flow.Set(src4, dst4)
			p := Make(make([]byte, MaxPacket), RCWriteMiddle, c.n)
			flow.Seal(p, 17)
			b.SetBytes(int64(c.n))
			b.ReportAllocs()
			for b.Loop() {
				q, _ := Parse(p.Bytes())
				if _, ok := flow.Check(q, c.guess); !ok {
					b.Fatal("damaged")
				}
			}
		})
	}
}
