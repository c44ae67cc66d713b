package wire

import (
	"bytes"
	"testing"

	"vrdma.dev/vrdma/internal/testkit/golden"
)

// seeds adds the packets of a few captures to a fuzz target.
func seeds(f *testing.F, add func(fr *frame)) {
	for _, name := range []string{"rc-all-opcodes", "rc-nak-rkey", "udaddy-sidr", "rping-reject", "uc-pingpong-4096", "rc-pingpong-ipv6gid"} {
		frames(f, golden.Path(name+".pcap"), add)
	}
}

// FuzzParse checks that a packet that Parse accepts equals its copy made field by field, except for
// reserved bits.
func FuzzParse(f *testing.F) {
	seeds(f, func(fr *frame) { f.Add(bytes.Clone(fr.packet.Bytes())) })
	for _, r := range rows {
		n := 0
		if r.payload != anyPayload {
			n = r.payload
		}
		f.Add(bytes.Clone(Make(make([]byte, MaxPacket), r.Opcode, n).Bytes()))
	}
	f.Add(bytes.Clone(MakeFilled(make([]byte, MaxPacket), RCWriteMiddle, 30, 16).Bytes()))
	f.Add(bytes.Clone(MakeFilled(make([]byte, MaxPacket), RCWriteLast, 30, MaxFiller+16).Bytes()))
	f.Fuzz(func(t *testing.T, data []byte) {
		p, err := Parse(data)
		if err != nil {
			return
		}
		_ = p.String()
		q := remake(make([]byte, len(data)), p)
		q.SetICRC(p.ICRC())
		want := bytes.Clone(data)
		clearReserved(want)
		if !bytes.Equal(q.Bytes(), want) {
			t.Errorf("got  % x\nwant % x", q.Bytes(), want)
		}
		var flow Flow
		flow.Set(src4, dst4)
		flow.Seal(q, 5)
		if id, ok := flow.Check(q, 0); !ok || id != 5 {
			t.Errorf("sealed with identification 5, found %d, %v", id, ok)
		}
	})
}

// clearReserved clears the reserved bits.
func clearReserved(data []byte) {
	p, _ := Parse(data)
	data[bthECN] &= bthFECN | bthBECN
	if p.Filler() == 0 {
		data[bthAckReq] &= bthAckReqFlag
	}
	if h := p.DETH(); h != nil {
		h[dethReserved] = 0
	}
	end := len(data) - ICRCSize - p.Filler()
	if p.Filler() > MaxFiller {
		clear(data[end : len(data)-ICRCSize-2*fillerWord])
	}
	clear(data[end-p.BTH().Pad() : end])
}

// FuzzFrame checks that no frame is read outside of its bounds, and that an accepted frame can be rebuilt.
func FuzzFrame(f *testing.F) {
	seeds(f, func(fr *frame) { f.Add(bytes.Clone(fr.raw)) })
	f.Fuzz(func(t *testing.T, data []byte) {
		fr, ok, err := open(data)
		if !ok || err != nil {
			return
		}
		raw, udp := data, fr.udp
		out := rebuild(&fr)
		again, ok, err := open(out)
		if !ok || err != nil {
			t.Fatalf("cannot open what was built again: %v, %v\n% x\n% x", ok, err, raw, out)
		}
		if again.src != fr.src || again.dst != fr.dst || again.udp.Length() != udp.Length() ||
			!bytes.Equal(again.packet.Payload(), fr.packet.Payload()) {
			t.Errorf("got  % x\nwant % x", out, raw)
		}
	})
}

// FuzzMAD checks that connection manager messages survive two copies made field by field.
func FuzzMAD(f *testing.F) {
	seeds(f, func(fr *frame) {
		if m := fr.packet.MAD(); m != nil {
			f.Add(bytes.Clone(m))
		}
	})
	f.Fuzz(func(t *testing.T, data []byte) {
		m := MAD(data)
		_ = m.String()
		if !m.IsCM() {
			return
		}
		view, ok := messages[CMMessage(m.Attribute())]
		if !ok {
			return
		}
		once, twice := make([]byte, CMSize), make([]byte, CMSize)
		copyFields(view(once), view(m.Data()))
		copyFields(view(twice), view(once))
		if !bytes.Equal(once, twice) {
			t.Errorf("got  % x\nwant % x", twice, once)
		}
		for at := range once {
			if once[at]&^m.Data()[at] != 0 {
				t.Errorf("byte %d: bits appear from nowhere", at)
			}
		}
	})
}

// FuzzGRH checks that the addresses of a GRH can be read whatever its content.
func FuzzGRH(f *testing.F) {
	f.Add(make([]byte, GRHSize), []byte{10, 0, 0, 1})
	f.Fuzz(func(t *testing.T, data, addr []byte) {
		g := GRH(bytes.Clone(data))
		if !g.IsValid() || len(addr) < 16 {
			return
		}
		if g.IsIPv4() {
			g.IPv4().SetSrc([4]byte(addr))
			g.IPv4().SetDst([4]byte(addr[4:]))
			if g.SGID() != mapped([4]byte(addr)) || g.DGID() != mapped([4]byte(addr[4:])) {
				t.Errorf("% x: from %x to %x", data, g.SGID(), g.DGID())
			}
			return
		}
		g.IPv6().Init()
		g.IPv6().SetSrc([16]byte(addr))
		g.IPv6().SetDst([16]byte(addr))
		if g.SGID() != [16]byte(addr) || g.DGID() != [16]byte(addr) {
			t.Errorf("% x: from %x to %x", data, g.SGID(), g.DGID())
		}
	})
}
