package transport_test

import (
	"bytes"
	"encoding/binary"
	"testing"

	"vrdma/internal/memory"
	"vrdma/internal/simnet"
	. "vrdma/internal/transport"
)

// The fuzzer's input is a list of events of this many bytes each.
const eventSize = 24

// FuzzReceive throws bursts of all kinds, right and wrong, at a queue pair that has
// work of its own outstanding. Nothing may panic, and nothing may be written but what
// the region with remote rights and the posted receives cover.
func FuzzReceive(f *testing.F) {
	for seed := range byte(8) {
		var b []byte
		for i := range byte(20) {
			e := make([]byte, eventSize)
			e[0], e[1], e[2] = i%KindAckByte+1, seed, i
			e[3] = 0xff
			b = append(b, e...)
		}
		f.Add(b, seed)
	}
	f.Fuzz(func(t *testing.T, script []byte, mode byte) {
		typ := RC + Type(mode%3)
		w := newSizedWorld(t, typ, 160<<10, config(func(c *Config) { c.MaxBurst = 2048 }))
		w.Tap = func(*simnet.Endpoint, *Burst) bool { return true }
		// b's memory: [0, 64K) is open to the peer, [64K, 128K) to receives, the
		// rest to nobody.
		mem := w.b.Node.Mem
		copy(mem, pattern[:])
		w.b.Node.Deregister(w.bKey)
		open := w.b.Node.Register(simnet.Base, 64<<10, simnet.AllAccess)
		own := w.b.Node.Register(simnet.Base+64<<10, 64<<10, AccessLocalWrite)
		for i := range 8 {
			r := RecvWQE{WRID: uint64(i), NumSGE: 1}
			r.SGE[0] = SGE{Addr: simnet.Base + 64<<10 + uint64(i)*4096, Length: 4096, LKey: own}
			w.b.PostRecv(r)
		}
		for i, op := range []WROp{WRWrite, WRRead, WRFetchAdd, WRSend, WRRead} {
			r := w.req(op, 3000, 0)
			r.WRID = uint64(i)
			r.SGE[0] = SGE{Addr: simnet.Base + 96<<10, Length: 3000, LKey: own}
			w.b.Post(r)
		}
		before := bytes.Clone(mem[128<<10:])
		for n := 0; len(script) >= eventSize && n < 64; n++ {
			play(w, script[:eventSize], typ, open)
			script = script[eventSize:]
		}
		if !bytes.Equal(before, mem[128<<10:]) {
			t.Errorf("memory outside all regions was written")
		}
		if got, err := Thaw(w.b.QP.Freeze()); err != nil || got != w.b.QP {
			t.Errorf("freeze and thaw: %v", err)
		}
	})
}

// KindAckByte is the number of kinds.
const KindAckByte = byte(KindAck)

// play makes one burst of an event and lets the queue pair work.
func play(w *world, e []byte, typ Type, key uint32) {
	now := w.Now + Time(e[23])*1_000_000
	sn := w.b.QP.Snapshot()
	b := Burst{
		Type: typ, Kind: Kind(e[0]), First: e[3]&1 != 0, Last: e[3]&2 != 0, AckReq: e[3]&4 != 0, Solicited: e[3]&8 != 0,
		Src: w.a.Num, Dst: w.b.Num, SGID: w.a.GID, DGID: w.b.GID, PKey: 0xffff, MTU: 1024,
		Packets: uint32(e[4]%8) + uint32(e[5])<<16, VA: simnet.Base + uint64(binary.LittleEndian.Uint32(e[6:])), RKey: key,
		Length: uint32(binary.LittleEndian.Uint16(e[10:])), Imm: uint32(e[12]), Syndrome: e[13],
		Compare: uint64(e[14]), Swap: uint64(e[15]),
	}
	// Sequence numbers near what is expected are the interesting ones.
	base := sn.Attr.RQPSN
	if b.Kind >= KindReadResp {
		base = sn.OldestPSN
	}
	b.PSN = (base + uint32(int32(int8(e[16])/16))) & 0xffffff
	if e[3]&0x10 != 0 {
		b.RKey += uint32(e[17])
		b.Length = binary.LittleEndian.Uint32(e[18:])
		b.VA = uint64(e[22]) << 56
	}
	size := int(b.Packets&7) * 1024
	if e[3]&0x20 != 0 {
		size = int(binary.LittleEndian.Uint16(e[18:])) % 9000
	}
	var s memory.Span
	s.Add(w.a.Node.Mem[:size])
	if e[3]&0x40 != 0 {
		b.Data = &s
	}
	w.b.QP.Receive(now, &b, w.b)
	switch e[1] % 4 {
	case 0:
		w.b.QP.Run(now, int(e[2])<<6, w.b)
	case 1:
		w.b.QP.Respond(now, int(e[2])<<6, w.b)
	case 2:
		if d := w.b.QP.Deadline(); d != 0 && now >= d {
			w.b.QP.Expire(now, w.b)
		}
	}
	w.Now = now
}
