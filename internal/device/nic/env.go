package nic

import (
	"encoding/binary"

	"vrdma.dev/vrdma/internal/abi"
	"vrdma.dev/vrdma/internal/device/memory"
	"vrdma.dev/vrdma/internal/device/transport"
	"vrdma.dev/vrdma/internal/ib"
)

// A qpNIC is the NIC as one queue pair's state machine sees it: the QP itself, with other methods. Package engine and the
// verbs use those of QP.
type qpNIC QP

var _ transport.NIC = (*qpNIC)(nil)

// qp returns the queue pair.
func (q *qpNIC) qp() *QP { return (*QP)(q) }

// Env is what the state machine's calls take: this queue pair, its owner, and the loop's
// working storage.
func (q *QP) Env() *transport.Env { return &q.env }

// FetchSend implements transport.NIC.
func (q *qpNIC) FetchSend(pos uint32, w *transport.SendWQE) bool {
	if pos-q.sq.cons >= q.sq.posted() {
		return false
	}
	parseSend(q.sq.slot(pos), q.typ, q.cap.SendSGE, w)
	w.Pos = pos
	return true
}

// wcOpcode is the operation of a request's completion.
var wcOpcode = [16]uint32{
	transport.WRSend: abi.WCOpSend, transport.WRSendImm: abi.WCOpSend, transport.WRSendInv: abi.WCOpSend,
	transport.WRWrite: abi.WCOpWrite, transport.WRWriteImm: abi.WCOpWrite,
	transport.WRRead: abi.WCOpRead, transport.WRCmpSwap: abi.WCOpCmpSwap, transport.WRFetchAdd: abi.WCOpFetchAdd,
	transport.WRBindMW: abi.WCOpBindMW, transport.WRLocalInv: abi.WCOpLocalInv,
	transport.WRFlush: abi.WCOpFlush, transport.WRAtomicWrite: abi.WCOpAtomicWrite,
}

// CompleteSend implements transport.NIC.
func (q *qpNIC) CompleteSend(w *transport.SendWQE, st transport.Status, bytes uint32) {
	q.sq.advance(w.Pos + 1)
	if st == transport.Success && !q.sigAll && w.Flags&transport.FlagSignaled == 0 {
		return
	}
	q.complete(q.sendCQ, &completion{wrID: w.WRID, status: st, opcode: wcOpcode[w.Op&15], byteLen: bytes, qpNum: q.num})
}

// complete pushes a completion. The queue belongs to the same loop.
func (q *qpNIC) complete(c *CQ, w *completion) bool {
	if (len(q.session.faults) > 0 || c.held > 0) && q.loop.holdBack(q.qp(), c, w) {
		return false
	}
	return c.push(w)
}

// TakeRecv implements transport.NIC.
func (q *qpNIC) TakeRecv(w *transport.RecvWQE) bool {
	if q.srq != nil {
		return q.srq.take(w)
	}
	if q.rq.mem == nil || q.rq.posted() == 0 {
		return false
	}
	parseRecv(q.rq.slot(q.rq.cons), q.cap.RecvSGE, w)
	q.rq.advance(q.rq.cons + 1)
	return true
}

// CompleteRecv implements transport.NIC.
func (q *qpNIC) CompleteRecv(w *transport.RecvWQE, r *transport.RecvResult) {
	c := completion{
		wrID: w.WRID, status: r.Status, opcode: abi.WCOpRecv, byteLen: r.ByteLen, qpNum: q.num, srcQP: r.SrcQP,
		solicited: r.Solicited,
	}
	if r.Op == transport.RecvWriteImm {
		c.opcode = abi.WCOpRecvWriteImm
	}
	if r.HasImm {
		c.flags |= abi.WCFlagImm
		c.imm = r.Imm
	}
	if r.HasInv {
		c.flags |= abi.WCFlagInv
		c.imm = r.Imm
	}
	if r.HasGRH {
		c.flags |= abi.WCFlagGRH
		c.sl = q.lastSL
	}
	q.rang = q.complete(q.recvCQ, &c)
}

// list appends n bytes of a scatter/gather list, from byte off on, to s.
func (q *qpNIC) list(sge []transport.SGE, off, n uint32, need ib.Access, s *memory.Span) transport.Status {
	aside := q.asideOut
	if need != 0 {
		aside = q.asideIn
	}
	for i := range sge {
		if n == 0 {
			break
		}
		e := &sge[i]
		if off >= e.Length {
			off -= e.Length
			continue
		}
		va, k := e.Addr+uint64(off), min(n, e.Length-off)
		m := q.local(e.LKey, va, k, need)
		if m == nil || !m.region.Reach(va-m.iova, uint64(k), s, aside) {
			return transport.LocProtErr
		}
		n -= k
		off = 0
	}
	if n > 0 {
		return transport.LocLenErr
	}
	return transport.Success
}

// Gather implements transport.NIC.
func (q *qpNIC) Gather(w *transport.SendWQE, off, n uint32, s *memory.Span) transport.Status {
	if w.Flags&transport.FlagInline != 0 {
		b := q.sq.slot(w.Pos)[abi.SendWQESize:]
		if uint64(off)+uint64(n) > uint64(len(b)) {
			return transport.LocQPOpErr
		}
		s.Add(b[off : off+n])
		return transport.Success
	}
	if q.errands != nil {
		n = q.errands.atHand(w.Pos, off, n)
	}
	st := q.list(w.SGE[:w.NumSGE], off, n, 0, s)
	if st == transport.Success && s.Foreign() {
		return q.gatherForeign(w, off, s)
	}
	return st
}

// copyTo moves data to where q.loop.scratch points.
func (q *qpNIC) copyTo(s *memory.Span, fail transport.Status) transport.Status {
	if q.loop.scratch.Foreign() {
		return q.put(&q.loop.scratch, s, fail)
	}
	n, err := q.loop.copier.Copy(&q.loop.scratch, s)
	if err != nil || n != s.Len() {
		return fail
	}
	return transport.Success
}

// scatter places s in a list's memory, from off on.
func (q *qpNIC) scatter(sge []transport.SGE, off uint32, s *memory.Span) transport.Status {
	d := &q.loop.scratch
	d.Reset()
	if st := q.list(sge, off, uint32(s.Len()), ib.AccessLocalWrite, d); st != transport.Success {
		return st
	}
	return q.copyTo(s, transport.LocProtErr)
}

// ScatterSend implements transport.NIC.
func (q *qpNIC) ScatterSend(w *transport.SendWQE, off uint32, s *memory.Span) transport.Status {
	return q.scatter(w.SGE[:w.NumSGE], off, s)
}

// ScatterRecv implements transport.NIC.
func (q *qpNIC) ScatterRecv(w *transport.RecvWQE, off uint32, s *memory.Span) transport.Status {
	return q.scatter(w.SGE[:w.NumSGE], off, s)
}

// CheckRemote implements transport.NIC.
func (q *qpNIC) CheckRemote(rkey uint32, va uint64, n uint32, a ib.Access) transport.Status {
	if m, _ := q.remote(rkey, va, uint64(n), a); m == nil {
		return transport.RemAccessErr
	}
	return transport.Success
}

// CheckKey implements transport.NIC.
func (q *qpNIC) CheckKey(rkey uint32, a ib.Access) transport.Status {
	ok := false
	switch k := q.nic.keys[rkey>>8].(type) {
	case *MR:
		ok = k.lkey == rkey && k.pd == q.pd && k.access&a == a
	case *MW:
		ok = k.allows(q.qp(), rkey, a)
	}
	if !ok {
		return transport.RemAccessErr
	}
	return transport.Success
}

// WriteRemote implements transport.NIC.
func (q *qpNIC) WriteRemote(rkey uint32, va uint64, s *memory.Span) transport.Status {
	m, off := q.remote(rkey, va, uint64(s.Len()), ib.AccessRemoteWrite)
	d := &q.loop.scratch
	d.Reset()
	if m == nil || !m.region.Reach(off, uint64(s.Len()), d, q.asideIn) {
		return transport.RemAccessErr
	}
	return q.copyTo(s, transport.RemOpErr)
}

// ReadRemote implements transport.NIC.
func (q *qpNIC) ReadRemote(rkey uint32, va uint64, n uint32, s *memory.Span) transport.Status {
	m, off := q.remote(rkey, va, uint64(n), ib.AccessRemoteRead)
	if m == nil || !m.region.Reach(off, uint64(n), s, q.asideOut) {
		return transport.RemAccessErr
	}
	if s.Foreign() {
		return q.fetch(q.tr.ResponsePSN(), s)
	}
	return transport.Success
}

// Atomic implements transport.NIC.
func (q *qpNIC) Atomic(k transport.Kind, rkey uint32, va uint64, compare, swap uint64) (uint64, transport.Status) {
	need := ib.AccessRemoteAtomic
	if k == transport.KindAtomicWrite {
		need = ib.AccessRemoteWrite
	}
	m, off := q.remote(rkey, va, 8, need)
	d := &q.loop.scratch
	d.Reset()
	if m == nil || !m.region.Reach(off, 8, d, q.asideIn) {
		return 0, transport.RemAccessErr
	}
	if d.Foreign() {
		return q.change(k, m.region, off, d, compare, swap)
	}
	if k == transport.KindAtomicWrite {
		if err := q.loop.copier.Store(d, swap); err != nil {
			return 0, transport.RemOpErr
		}
		return 0, transport.Success
	}
	old, err := q.loop.copier.Atomic(d, k == transport.KindCmpSwap, compare, swap)
	if err != nil {
		return 0, transport.RemOpErr
	}
	return old, transport.Success
}

// InvalidateRemote implements transport.NIC.
func (q *qpNIC) InvalidateRemote(rkey uint32) transport.Status {
	if !q.invalidate(rkey) {
		return transport.RemAccessErr
	}
	return transport.Success
}

// LocalOp implements transport.NIC.
func (q *qpNIC) LocalOp(w *transport.SendWQE) transport.Status {
	if w.Op == transport.WRBindMW {
		return q.bind(w)
	}
	if !q.invalidate(w.Imm) {
		return transport.LocQPOpErr
	}
	return transport.Success
}

// ResolveAH implements transport.NIC.
func (q *qpNIC) ResolveAH(num uint32) (sgid, dgid ib.GID, ok bool) {
	a := q.ah(num)
	if a == nil {
		return ib.GID{}, ib.GID{}, false
	}
	return a.sgid, a.attr.DGID, true
}

// ah finds the address handle that a work request names; it must be of the same
// protection domain.
func (q *qpNIC) ah(num uint32) *AH {
	a, err := q.session.ahs.get(num - 1)
	if err != nil || a.pd != q.pd {
		return nil
	}
	return a
}

// Service levels of a datagram's completion. On RoCE they tell the type of the network header
// before the data. UCX since 1.13 relies on that, and drops a datagram whose header does not have
// its own address. Bit 3: there is UDP.
const (
	slRoCEv2IPv6 = 8 | 1
	slRoCEv2IPv4 = 8 | 2
)

// GRH implements transport.NIC: the network header as RoCEv2 receivers show it,
// an IPv6 header, or 20 bytes of nothing and an IPv4 header.
func (q *qpNIC) GRH(b *transport.Burst, out *[40]byte) {
	*out = [40]byte{}
	length := uint16(b.Data.Len() + 8 + 12 + 8 + 4) // UDP, BTH, DETH, ICRC
	q.lastSL = slRoCEv2IPv6
	if b.DGID.Is4() || b.SGID.Is4() {
		q.lastSL = slRoCEv2IPv4
		h := out[20:]
		h[0] = 0x45
		binary.BigEndian.PutUint16(h[2:], length+20)
		h[6] = 0x40 // DF
		h[8] = 64
		h[9] = 17 // UDP
		copy(h[12:16], b.SGID[12:])
		copy(h[16:20], b.DGID[12:])
		binary.BigEndian.PutUint16(h[10:], checksum(h))
		return
	}
	out[0] = 6 << 4
	binary.BigEndian.PutUint16(out[4:], length)
	out[6] = 17
	out[7] = 64
	copy(out[8:24], b.SGID[:])
	copy(out[24:40], b.DGID[:])
}

// checksum is the Internet checksum of an IPv4 header.
func checksum(h []byte) uint16 {
	var sum uint32
	for i := 0; i < len(h); i += 2 {
		sum += uint32(binary.BigEndian.Uint16(h[i:]))
	}
	for sum > 0xffff {
		sum = sum>>16 + sum&0xffff
	}
	return ^uint16(sum)
}

var asyncCodes = map[transport.Event]uint32{
	transport.EventFatal:     abi.EventQPFatal,
	transport.EventReqErr:    abi.EventQPReqErr,
	transport.EventAccessErr: abi.EventQPAccessErr,
	transport.EventCommEst:   abi.EventCommEst,
	transport.EventSQDrained: abi.EventSQDrained,
	transport.EventLastWQE:   abi.EventQPLastWQEReached,
}

// Event implements transport.NIC.
func (q *qpNIC) Event(e transport.Event) {
	if q.session.async == nil {
		return
	}
	q.events++
	q.session.async.post(asyncEvent(q.userHandle, asyncCodes[e]))
}
