package transport_test

import (
	"bytes"
	"encoding/binary"
	"testing"

	"vrdma.dev/vrdma/internal/device/memory"
	. "vrdma.dev/vrdma/internal/device/transport"
	"vrdma.dev/vrdma/internal/ib"
	"vrdma.dev/vrdma/internal/state"
	"vrdma.dev/vrdma/internal/testkit/simnet"
)

// eventSize is the number of input bytes per event.
const eventSize = 24

// FuzzReceive sends valid and invalid bursts of all kinds to a queue pair with outstanding work. Nothing may panic, and nothing
// may be written outside of the region with remote rights and the posted receives.
func FuzzReceive(f *testing.F) {
	for seed := range byte(32) {
		var b []byte
		for i := range byte(20) {
			e := make([]byte, eventSize)
			e[0], e[1], e[2] = i%kinds+1, seed, i
			e[3] = 0xff
			b = append(b, e...)
		}
		f.Add(b, seed)
	}
	f.Fuzz(func(t *testing.T, script []byte, mode byte) {
		typ := ib.RC + ib.Service(mode%3)
		path := Path{Remote: mode&8 != 0, Own: mode&16 != 0, Window: 8192}
		w := newSizedWorld(t, typ, 160<<10, config(func(c *Config) { c.MaxBurst = 2048 }))
		w.Tap = func(*simnet.Endpoint, *Burst) bool { return true }
		w.remote(path)
		// b's memory: [0, 64K) is open to the peer, [64K, 128K) to receives, the
		// rest to nobody.
		mem := w.b.Node.Mem
		copy(mem, pattern[:])
		w.b.Node.Deregister(w.bKey)
		open := w.b.Node.Register(simnet.Base, 64<<10, simnet.AllAccess)
		own := w.b.Node.Register(simnet.Base+64<<10, 64<<10, ib.AccessLocalWrite)
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
		// The stash is not frozen, so the two states may differ.
		was := frozen(t, &w.b.QP, w.Now)
		if got, err := thaw(was, 1<<40); err != nil || !bytes.Equal(frozen(t, &got, 1<<40), was) {
			t.Errorf("freeze and thaw: %v", err)
		}
	})
}

// frozen returns the encoded state of a queue pair.
func frozen(t testing.TB, q *QP, now ib.Time) []byte {
	var st QPState
	q.Freeze(&st, now)
	b, err := state.Marshal(&st)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// thaw decodes what frozen has encoded.
func thaw(b []byte, now ib.Time) (QP, error) {
	var st QPState
	if err := state.Unmarshal(b, &st); err != nil {
		return QP{}, err
	}
	return Thaw(&st, now)
}

// kinds is the number of kinds.
const kinds = byte(KindCNP)

// play makes one burst from an event and lets the queue pair work.
func play(w *world, e []byte, typ ib.Service, key uint32) {
	now := w.Now + ib.Time(e[23])*1_000_000
	sn := w.b.QP.Snapshot()
	b := Burst{
		Type: typ, Kind: Kind(e[0]), First: e[3]&1 != 0, Last: e[3]&2 != 0, AckReq: e[3]&4 != 0, Solicited: e[3]&8 != 0,
		Src: w.a.Num, Dst: w.b.Num, SGID: w.a.GID, DGID: w.b.GID, PKey: 0xffff, MTU: 1024,
		Packets: uint32(e[4]%8) + uint32(e[5])<<16, VA: simnet.Base + uint64(binary.LittleEndian.Uint32(e[6:])), RKey: key,
		Length: uint32(binary.LittleEndian.Uint16(e[10:])), Imm: uint32(e[12]), Syndrome: e[13],
		Compare: uint64(e[14]), Swap: uint64(e[15]), CE: e[3]&0x80 != 0,
	}
	// Use sequence numbers near the expected one.
	base := sn.Attr.RQPSN
	if b.Kind >= KindReadResp {
		base = sn.OldestPSN
	}
	b.PSN = (base + uint32(int32(int8(e[16])/16))) & 0xffffff
	b.MSN = (b.PSN + uint32(e[17]%8)) & 0xffffff // in some NAKs, the end of a gap
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
	w.b.QP.Receive(now, &b, w.b.Env())
	switch e[1] % 4 {
	case 0:
		w.b.QP.Run(now, int(e[2])<<6, w.b.Env())
	case 1:
		w.b.QP.Respond(now, int(e[2])<<6, w.b.Env())
	case 2:
		if d := w.b.QP.Deadline(); d != 0 && now >= d {
			w.b.QP.Expire(now, w.b.Env())
		}
	}
	w.Now = now
}

// FuzzConversation lets two queue pairs talk over a network that does to every packet what
// the script says: loses it, sends it twice, late, or changed. They may give up; they must
// not panic, hang, write anywhere but where they may, or accept what was not sent.
func FuzzConversation(f *testing.F) {
	for seed := range byte(24) {
		script := make([]byte, 400)
		for i := range script {
			if (i*7+int(seed))%(5+int(seed)) == 0 {
				script[i] = byte(i*31) + seed
			}
		}
		f.Add(script, seed)
	}
	f.Fuzz(func(t *testing.T, script []byte, mode byte) {
		w := newSizedWorld(t, ib.RC, 256<<10, onWire, aAttr(func(a *Attr) { a.SQPSN, a.Timeout = 1<<24-20, 8 }))
		if mode&1 != 0 {
			w.remote(Path{Remote: true, Own: mode&2 != 0, Window: 16 << 10})
		}
		mem := w.b.Node.Mem
		w.b.Node.Deregister(w.bKey)
		w.bKey = w.b.Node.Register(simnet.Base, 64<<10, simnet.AllAccess)
		own := w.b.Node.Register(simnet.Base+64<<10, 64<<10, ib.AccessLocalWrite)
		for i := range 8 {
			r := RecvWQE{WRID: uint64(i), NumSGE: 1}
			r.SGE[0] = SGE{Addr: simnet.Base + 64<<10 + uint64(i)*8192, Length: 8192, LKey: own}
			w.b.PostRecv(r)
		}
		w.post(w.req(WRWrite, 9000, 0), w.req(WRSend, 5000, 0), w.req(WRRead, 12000, 0), w.req(WRFetchAdd, 8, 64), w.req(WRSendImm, 100, 0),
			w.req(WRWrite, 3000, 4096), w.req(WRRead, 9000, 100), w.req(WRWriteImm, 20, 0))
		for i := range mem[128<<10:] {
			mem[128<<10+i] = 0xa5
		}
		step := 0
		w.Lose = func(b *Burst) bool {
			if step >= len(script) {
				return false
			}
			what := script[step]
			step++
			return w.mangle(b, what, script[step:])
		}
		w.Run(w.Now+20e9, 200_000)
		for i, b := range mem[128<<10:] {
			if b != 0xa5 {
				t.Fatalf("byte %d outside all regions was written", i)
			}
		}
		for _, e := range []*simnet.Endpoint{w.a, w.b} {
			if _, err := thaw(frozen(t, &e.QP, w.Now), w.Now); err != nil {
				t.Errorf("freeze and thaw: %v", err)
			}
		}
		if len(w.a.Sent) > 8 {
			t.Errorf("%d completions of 8 requests", len(w.a.Sent))
		}
	})
}

// mangle does to b what the script says, and reports whether it is lost. What it makes of
// b reaches its receiver at once.
func (w *world) mangle(b *Burst, what byte, arg []byte) (lost bool) {
	if what < 0x40 || len(arg) < 2 {
		return false
	}
	if what < 0x60 {
		return true
	}
	c := *b
	c.Data = nil
	if what&1 != 0 {
		var s memory.Span
		s.Add(w.a.Node.Mem[:min(int(arg[0])*16, 4096)])
		c.Data = &s
	}
	v := uint32(arg[0]) | uint32(arg[1])<<8
	switch what >> 1 & 15 {
	case 0:
		c.PSN = (c.PSN + v%16 - 8) & 0xffffff
	case 1:
		c.Kind = Kind(v % uint32(kinds+2))
	case 2:
		c.First = !c.First
	case 3:
		c.Last = !c.Last
	case 4:
		c.Length = v << (v % 17)
	case 5:
		c.VA += uint64(v) << (v % 49)
	case 6:
		c.RKey ^= v
	case 7:
		c.Syndrome = byte(v)
		c.MSN = (c.PSN + v>>8) & 0xffffff
	case 8:
		c.Packets = v
	case 9:
		c.CE = true
	case 10:
		c.MSN = v
	case 11:
		c.Type = ib.Service(v % 5)
	case 12:
		c.AckReq = !c.AckReq
	}
	to := w.b
	if b.Dst == w.a.Num {
		to = w.a
	}
	to.QP.Receive(w.Now, &c, to.Env())
	return what&0x80 != 0
}
