package engine

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"net/netip"
	"testing"

	"vrdma.dev/vrdma/internal/device/memory"
	"vrdma.dev/vrdma/internal/device/nic"
	"vrdma.dev/vrdma/internal/device/transport"
	"vrdma.dev/vrdma/internal/ib"
	"vrdma.dev/vrdma/internal/net/roce"
	"vrdma.dev/vrdma/internal/net/wire"
)

// The responder as a whole: packets as they come from a socket, through port, engine, NIC
// and transport, into the memory of a client.
//
//	fuzzer ── packets ──▶ roce.FakeNet ──▶ Port ──▶ Engine ──▶ nic, transport ──▶ memory
//	   ▲                                                │        guard │ open │ guard │ own │ guard
//	   └────────────── responses ───────────────────────┘

// Memory of the client under attack. Only open has remote rights, and only own holds its receives; no packet may reach
// the rest.
const (
	guardByte = 0xa5
	openAt    = 64 << 10
	openSize  = 16 << 10
	ownAt     = 128 << 10
	ownSize   = 16 << 10
	guardEnd  = 192 << 10
)

var (
	victimIP   = netip.MustParseAddr("10.0.0.1")
	peerIP     = netip.MustParseAddr("10.0.0.2")
	strangerIP = netip.MustParseAddr("10.0.0.3")
)

// victim is an engine with one connected queue pair.
type victim struct {
	e        *Engine
	c        *program
	q        *testQP
	open     nic.MRInfo
	net      *roce.FakeNet
	peer     *roce.FakeBind
	stranger *roce.FakeBind
	in       [8]roce.Message
	room     [8][]byte
}

// guarded is memory that no peer may ever see.
var guarded = [8]byte(bytes.Repeat([]byte{guardByte}, 8))

func newVictim(t testing.TB, typ uint8) *victim {
	v := &victim{net: roce.NewFakeNet()}
	for i := range v.room {
		v.room[i] = make([]byte, 1<<16)
	}
	v.peer, v.stranger = v.net.Bind(roce.FakeOptions{}, peerIP), v.net.Bind(roce.FakeOptions{}, strangerIP)
	n := nic.New(nic.Config{Name: "rxe0", GIDs: []nic.GIDEntry{{GID: ib.GIDOf(victimIP), NetDev: "eth0"}}})
	var err error
	v.e, err = newWith(n, Options{Port: roce.NewPort(v.net.Bind(roce.FakeOptions{}, victimIP)), Window: 64 << 10, Spin: 1}) // a fuzzing process has one processor
	if err != nil {
		t.Fatal(err)
	}
	v.e.Start()
	t.Cleanup(v.e.Stop)
	v.c = newClient(t, v.e)
	v.register(t, typ)
	return v
}

// register makes the queue pair and its regions, and brings it to RTS.
func (v *victim) register(t testing.TB, typ uint8) {
	c := v.c
	region := func(at, size uint64) *memory.Region {
		r, err := c.space.Map(c.base+at, size, []memory.Extent{{Start: c.base + at, Offset: c.base + at, Length: size, Kind: memory.Own, Prot: 3}})
		if err != nil {
			t.Fatal(err)
		}
		return r
	}
	open, own := region(openAt, openSize), region(ownAt, ownSize)
	v.q = &testQP{c: c}
	c.do(func() error {
		pd, err := c.s.AllocPD()
		if err != nil {
			return err
		}
		if v.open, err = c.s.RegMR(nic.MRParams{PD: pd, Start: c.base + openAt, Length: openSize, HcaVA: c.base + openAt, Access: 0xf, Region: open}); err != nil {
			return err
		}
		if v.q.mr, err = c.s.RegMR(nic.MRParams{PD: pd, Start: c.base + ownAt, Length: ownSize, HcaVA: c.base + ownAt, Access: 1, Region: own}); err != nil {
			return err
		}
		if v.q.cq, err = c.s.CreateCQ(nic.CQParams{CQE: 255, Channel: -1}); err != nil {
			return err
		}
		v.q.info, err = c.s.CreateQP(nic.QPParams{PD: pd, SendCQ: v.q.cq.Handle, RecvCQ: v.q.cq.Handle, Type: typ,
			Cap: nic.QPCap{SendWR: 15, RecvWR: 15, SendSGE: 1, RecvSGE: 1}})
		return err
	})
	v.q.sq, v.q.rq, v.q.cqr = c.ring(v.q.info.SQ), c.ring(v.q.info.RQ), c.ring(v.q.cq.Ring)
	c.do(func() error {
		s, h := c.s, v.q.info.Handle
		if err := s.ModifyQP(h, attrInit, &nic.QPAttr{State: 1, PortNum: 1, AccessFlags: 0xf}); err != nil {
			return err
		}
		rtr, rts := ib.AttrMask(attrRTR), ib.AttrMask(attrRTS)
		if typ != rc {
			const rdAtomic, rnrTimer = 1 << 17, 1 << 15
			rtr, rts = rtr&^(rdAtomic|rnrTimer), 1<<0|1<<16
		}
		if err := s.ModifyQP(h, rtr, &nic.QPAttr{State: 2, PathMTU: 1, DestQPN: 77, MaxDestRDAtomic: 4, MinRNRTimer: 1,
			AH: nic.AHAttr{DGID: ib.GIDOf(peerIP), IsGlobal: true, PortNum: 1}}); err != nil {
			return err
		}
		return s.ModifyQP(h, rts, &nic.QPAttr{State: 3, Timeout: 14, RetryCnt: 7, RNRRetry: 7, MaxRDAtomic: 4})
	})
	for i := range c.mem[:guardEnd] {
		c.mem[i] = guardByte
	}
	clear(c.mem[openAt : openAt+openSize])
	clear(c.mem[ownAt : ownAt+ownSize])
	for i := range uint32(8) {
		v.q.recv(ownAt+i*2048, 2048)
	}
}

// attackSize is how many bytes of the fuzzer's script make a packet.
const attackSize = 16

// packet makes a packet of a piece of the script, and says whose it is. psn is the one that
// the victim expects.
func (v *victim) packet(s []byte, buf []byte, psn uint32) (p wire.Packet, from *roce.FakeBind, ok bool) {
	op := wire.Opcode(s[0])
	payload := int(s[1]) * 4 // up to 1020: the path MTU is 256
	if s[2]&1 != 0 {
		payload = 256
	}
	if op.Format() == nil {
		return p, nil, false
	}
	p = wire.Make(buf, op, payload)
	if _, err := wire.Parse(p.Bytes()); err != nil {
		p = wire.Make(buf, op, 0) // most have a payload of any length, or none
	}
	b := p.BTH()
	b.SetPKey(0xffff)
	b.SetDestQP(v.q.info.Num)
	b.SetPSN((psn + uint32(int32(int8(s[3])/16))) & 0xffffff)
	b.SetAckReq(s[2]&2 != 0)
	va := v.c.base + openAt + uint64(int16(binary.LittleEndian.Uint16(s[4:])))
	length := uint32(binary.LittleEndian.Uint16(s[6:]))
	if s[2]&4 != 0 {
		va, length = v.c.base+openAt, uint32(payload)
	}
	if s[2]&8 != 0 {
		length <<= 16
	}
	key := v.open.RKey
	switch {
	case s[2]&0x10 != 0:
		key = v.q.mr.RKey
	case s[2]&0x20 != 0:
		key ^= 1 << (s[8] % 32)
	}
	if h := p.RETH(); h != nil {
		h.SetVA(va)
		h.SetRKey(key)
		h.SetLength(length)
	}
	if h := p.AtomicETH(); h != nil {
		h.SetVA(va)
		h.SetRKey(key)
		h.SetSwap(uint64(s[9]))
		h.SetCompare(uint64(s[10]))
	}
	if h := p.IETH(); h != nil {
		h.SetRKey(key)
	}
	if h := p.AETH(); h != nil {
		h.SetSyndrome(s[11])
		h.SetMSN(uint32(s[12]))
	}
	for i := range p.Payload() {
		p.Payload()[i] = s[13] &^ 1 // never the guard's
	}
	from = v.peer
	if s[2]&0xc0 == 0xc0 {
		from = v.stranger
	}
	if at := int(s[14]) - 128; at >= 0 && at < len(p.Bytes()) && s[15] != 0 {
		p.Bytes()[at] ^= s[15] // before the ICRC is made, so that it gets through
	}
	return p, from, true
}

// attack plays a script. It runs on the loop, so that one thread is enough for all of it
// and a panic is not contained.
func (v *victim) attack(t *testing.T, script []byte) {
	t.Helper()
	var err error
	v.e.Do(func() { err = v.play(script) })
	if err != nil {
		t.Fatal(err)
	}
}

func (v *victim) play(script []byte) error {
	buf := make([]byte, roce.MaxMessage)
	const most = 64
	for n := 0; n < most && len(script) >= attackSize; n++ {
		psn := uint32(0)
		if q := v.e.only().QP(v.q.info.Num); q != nil {
			psn = q.Transport().Snapshot().Attr.RQPSN
		}
		p, from, ok := v.packet(script[:attackSize], buf, psn)
		script = script[attackSize:]
		if !ok {
			continue
		}
		ip := peerIP
		if from == v.stranger {
			ip = strangerIP
		}
		id, src, _ := from.Source(ip, 0)
		dst := netip.AddrPortFrom(victimIP, wire.Port)
		if q, err := wire.Parse(p.Bytes()); err == nil {
			var flow wire.Flow
			flow.Set(src, dst)
			flow.Seal(q, 0)
		}
		if _, err := from.Send([]roce.Message{{Data: p.Bytes(), Source: id, Remote: dst}}); err != nil {
			return err
		}
		v.e.first.clock.read()
		v.e.first.net.traffic.polled = true
		for range 4 {
			v.e.first.step()
		}
		if err := v.look(); err != nil {
			return err
		}
	}
	return nil
}

// look reads what the victim has sent: nothing to a stranger, and no guarded bytes to any peer.
func (v *victim) look() error {
	receive := func(b *roce.FakeBind) int {
		for i := range v.in {
			v.in[i].Data = v.room[i][:0]
		}
		n, _ := b.Receive(v.in[:])
		return n
	}
	if n := receive(v.stranger); n != 0 {
		return fmt.Errorf("a stranger got %d messages", n)
	}
	for range 64 {
		n := receive(v.peer)
		if n == 0 {
			break
		}
		for _, m := range v.in[:n] {
			if bytes.Contains(m.Data, guarded[:]) {
				return fmt.Errorf("guarded memory was sent: % x", m.Data)
			}
		}
	}
	return nil
}

// unharmed checks that everything outside the regions is as it was.
func (v *victim) unharmed(t *testing.T) {
	for _, r := range [][2]int{{0, openAt}, {openAt + openSize, ownAt}, {ownAt + ownSize, guardEnd}} {
		for i, b := range v.c.mem[r[0]:r[1]] {
			if b != guardByte {
				t.Fatalf("byte %d, outside every region, was written: %#x", r[0]+i, b)
			}
		}
	}
}

// FuzzNetwork: no sequence of packets makes the daemon panic, or reach memory outside a
// registered region, or answer a stranger.
func FuzzNetwork(f *testing.F) {
	const right = 0x04 // address, key and length
	ops := []wire.Opcode{
		wire.RCSendOnly, wire.RCWriteOnly, wire.RCReadRequest, wire.RCFetchAdd, wire.RCCompareSwap, wire.RCSendFirst, wire.RCSendMiddle, wire.RCSendLast,
		wire.RCWriteFirst, wire.RCWriteMiddle, wire.RCWriteLast, wire.RCWriteOnlyImm, wire.RCSendOnlyInv, wire.RCAck, wire.RCReadRespOnly, wire.RCAtomicWrite,
		wire.RCFlush, wire.UCSendOnly, wire.UCWriteOnly, wire.UCWriteFirst,
	}
	for i := range ops {
		for flags := range byte(2) {
			var script []byte
			for j := range 12 {
				s := make([]byte, attackSize)
				s[0], s[1], s[2] = byte(ops[(i+j*int(flags+1))%len(ops)]), byte(j*7), flags<<5|flags|right
				s[4], s[6], s[8] = byte(i*j), byte(j), flags
				script = append(script, s...)
			}
			f.Add(script, flags)
		}
	}
	f.Fuzz(func(t *testing.T, script []byte, mode byte) {
		typ := uint8(rc)
		if mode&1 != 0 {
			typ = 3 // UC
		}
		v := newVictim(t, typ)
		v.attack(t, script)
		v.unharmed(t)
	})
}

// TestNetworkReaches: what the fuzzer's packets are made of does reach memory when it is
// right, or the fuzzing would prove nothing.
func TestNetworkReaches(t *testing.T) {
	v := newVictim(t, rc)
	write := make([]byte, attackSize)
	write[0], write[1], write[2], write[13] = byte(wire.RCWriteOnly), 64, 4|2, 0x42
	v.attack(t, write)
	read := make([]byte, attackSize)
	read[0], read[1], read[2] = byte(wire.RCReadRequest), 64, 4
	v.attack(t, read)
	v.unharmed(t)
	if got := v.c.mem[openAt : openAt+256]; !bytes.Equal(got, bytes.Repeat([]byte{0x42}, 256)) {
		t.Errorf("the region holds % x…, want what was written", got[:16])
	}
	var c transport.Counters
	v.e.Do(func() { c = v.e.only().Counters().Counters })
	if c.RcvdPackets != 2 || c.SentPackets < 2 || c.Dropped != 0 {
		t.Errorf("%+v, want two requests and their answers", c)
	}
}
