package transport

import "vrdma/internal/ib"

// responder is the receiving half of a connected queue pair.
type responder struct {
	PSN    uint32 // expected next
	AckPSN uint32 // one past the last SEND, WRITE or atomic that was carried out
	MSN    uint32 // messages carried out

	// The message in progress, Kind zero if there is none. Bursts of it are
	// placed by their distance from MsgPSN, so one that overlaps what has
	// arrived already does no harm.
	MsgPSN uint32
	Kind   Kind // KindSend or KindWrite
	VA     uint64
	RKey   uint32
	Length uint32

	Established bool // CommEst has been raised
	NakSent     bool // the packet expected next has been asked for; the rest is ignored in silence
	Drop        bool // UC: ignore the rest of this message
	Closing     bool // a fatal NAK waits for READ responses before it
	HaveRecv    bool // R has been taken from the receive queue
	Waiting     bool // an RNR NAK was sent; what follows will come again
	Stalled     bool // the next packet is in the stash, and its memory was not at hand

	// READ and atomic responses, and what has to wait until they are out:
	// responses leave in the order of their requests (IBA 9.7.5.1.1).
	AckDue  bool
	NakDue  bool
	NakSyn  uint8
	Pending uint8 // resources that have a response to send
	Next    uint8 // index of the oldest of them
	Head    uint8 // index of the resource to be used next
	DuePSN  uint32
	NakPSN  uint32
	Ahead   uint32  // PSN of the newest packet that was ignored
	NakEnd  uint32  // where what NakPSN asks for ends; own hosts only
	NakAt   ib.Time // when the packet expected next was asked for
	NakTo   uint32  // the end of what was last asked for
	HoleAt  ib.Time // the same, as long as it was asked for once; own hosts only
	NakTrip ib.Time // how long what was asked for takes, smoothed

	// Requests that are ahead of the one expected are in the stash, under this
	// number; 0: none are.
	Episode uint32
	Newest  uint32 // one past the newest of them

	R   RecvWQE
	Res [MaxResources]resource
}

// fault is why a request cannot be carried out.
type fault uint8

const (
	faultNone     fault = iota
	faultRNR            // no receive is posted
	faultRequest        // the request is invalid
	faultLength         // it does not fit the receive
	faultAccess         // key, bounds or rights of the remote address
	faultRecv           // the receive itself is unusable
	faultInternal       // memory could not be reached
	faultLater          // not yet: no fault at all
)

// base reduces a kind of SEND or WRITE to KindSend or KindWrite, others to zero.
func (k Kind) base() Kind {
	switch k {
	case KindSend, KindSendImm, KindSendInv:
		return KindSend
	case KindWrite, KindWriteImm:
		return KindWrite
	}
	return 0
}

// receiveReliable is the RC responder (IBA 9.7.4 and 9.9.3): order, validity,
// resources, execution, acknowledgement.
//
// A burst that has to be offered again (Later) may have taken a receive and begun a message.
// Both are noted, so that it then goes on from there.
func (q *QP) receiveReliable(now ib.Time, b *Burst, h Host) (taken bool) {
	rs := &q.resp
	if !q.listening(h) || rs.Closing {
		q.count.Dropped++
		return true
	}
	switch d := ib.PSNDist(rs.PSN, b.PSN); {
	case d == 0:
	case d < ib.PSNHalf:
		if q.path.Own {
			q.stashSoon(now, b, h)
			return true
		}
		q.outOfSequence(now, b.PSN, h)
		return true
	case !q.overlaps(b):
		q.duplicate(now, b, h)
		return true
	}
	if rs.NakSent {
		rs.heard(now)
		rs.NakSent, rs.Waiting = false, false
	}
	if b.Kind.base() == 0 {
		if rs.Kind != 0 || !b.First || !b.Last || b.Packets != 1 {
			q.refuse(faultRequest, b.PSN, h)
			return true
		}
		return q.receiveRD(b, h)
	}
	if f := q.place(b, h); f != faultNone {
		if f == faultLater {
			return false
		}
		rs.NakAt = now
		q.refuse(f, rs.PSN, h) // b may begin before it
		return true
	}
	if b.Last && !q.deliver(b, h) {
		return true
	}
	if b.AckReq {
		q.ack(ib.PSNAdd(rs.PSN, ib.PSNMask), h)
	}
	return true
}

// overlaps reports whether b begins with packets that have arrived already, goes on
// with new ones and belongs to the message in progress.
func (q *QP) overlaps(b *Burst) bool {
	rs := &q.resp
	old := ib.PSNDist(b.PSN, rs.PSN)
	if b.Packets <= old || rs.Kind == 0 || b.Kind.base() != rs.Kind {
		return false
	}
	at := ib.PSNDist(rs.MsgPSN, b.PSN)
	return at < ib.PSNHalf && b.First == (at == 0)
}

// How long a packet that was asked for may take before it is asked for again. Each NAK
// costs the requester one of its retries, so a network that reorders must not provoke
// too many; our own requesters do not count them.
const (
	nakAgain    = ib.Time(250_000)
	nakAgainOwn = ib.Time(20_000)
)

// outOfSequence asks for the packet that is missing: once, and again if the requester
// has gone back since and it is missing still.
func (q *QP) outOfSequence(now ib.Time, psn uint32, h Host) {
	rs := &q.resp
	forward := ib.PSNDist(rs.Ahead, psn)
	rs.Ahead = psn
	if rs.NakSent && (forward != 0 && forward < ib.PSNHalf || now-rs.NakAt < nakAgain) {
		q.count.Dropped++
		return
	}
	rs.NakSent, rs.NakAt = true, now
	q.count.OutOfSequence++
	q.nakSoon(NakSequence, rs.PSN, h)
}

// place checks a burst of a SEND or WRITE and copies its data to where it belongs. The
// whole range of a WRITE is checked before its first byte is written.
func (q *QP) place(b *Burst, h Host) fault {
	rs := &q.resp
	base := b.Kind.base()
	first := b.First && (rs.Kind == 0 || b.PSN != rs.MsgPSN)
	if first == (rs.Kind != 0) || !first && base != rs.Kind {
		return faultRequest
	}
	n := b.size()
	if !b.wellFormed(n, q.attr.MTU) {
		return faultRequest
	}
	if base == KindWrite && q.attr.Access&ib.AccessRemoteWrite == 0 {
		return faultRequest
	}
	if (base == KindSend && first || b.Kind == KindWriteImm && b.Last) && !rs.HaveRecv {
		if !h.TakeRecv(&rs.R) {
			return faultRNR
		}
		rs.HaveRecv = true
		if rs.R.Bad != Success {
			return faultRecv
		}
	}
	if first {
		if f := q.startMessage(b, base, n, h); f != faultNone {
			return f
		}
	}
	off := ib.PSNDist(rs.MsgPSN, b.PSN) * q.attr.MTU
	if f := q.copyIn(b, off, n, h); f != faultNone {
		return f
	}
	rs.PSN = ib.PSNAdd(b.PSN, b.Packets)
	rs.AckPSN = rs.PSN
	rs.Length = max(rs.Length, off+n)
	return faultNone
}

// startMessage notes where the message that begins with b goes. For a WRITE that is
// all in one burst the copying checks what would be checked here.
func (q *QP) startMessage(b *Burst, base Kind, n uint32, h Host) fault {
	rs := &q.resp
	if base == KindWrite {
		if b.Length > MaxMessage {
			return faultRequest
		}
		if b.Length > 0 && !(b.Last && n == b.Length) {
			if st := h.CheckRemote(b.RKey, b.VA, b.Length, ib.AccessRemoteWrite); st != Success {
				return remoteFault(st)
			}
		}
		rs.VA, rs.RKey, rs.Length = b.VA, b.RKey, b.Length
	} else {
		rs.Length = 0
	}
	rs.Kind, rs.MsgPSN = base, b.PSN
	return faultNone
}

// copyIn puts n bytes at offset off of the message in progress into place.
func (q *QP) copyIn(b *Burst, off, n uint32, h Host) fault {
	rs := &q.resp
	if rs.Kind == KindWrite {
		end := uint64(off) + uint64(n)
		if end > uint64(rs.Length) || b.Last && end != uint64(rs.Length) {
			return faultRequest
		}
		if n > 0 {
			if st := h.WriteRemote(rs.RKey, rs.VA+uint64(off), b.Data); st != Success {
				return remoteFault(st)
			}
		}
		return faultNone
	}
	if uint64(off)+uint64(n) > uint64(rs.R.Length) {
		return faultLength
	}
	if n > 0 {
		if st := h.ScatterRecv(&rs.R, off, b.Data); st != Success {
			if st == Later {
				return faultLater
			}
			return faultRecv
		}
	}
	return faultNone
}

// wellFormed checks that n bytes are what b's packets carry at this MTU.
func (b *Burst) wellFormed(n, mtu uint32) bool {
	if uint64(b.Packets)*uint64(mtu) > MaxMessage+uint64(mtu) {
		return false
	}
	full := b.Packets * mtu
	if !b.Last {
		return n == full
	}
	if b.Packets == 1 && n == 0 {
		return b.First
	}
	return n <= full && n > full-mtu
}

// remoteFault classifies what the NIC says of a remote access.
func remoteFault(st Status) fault {
	switch st {
	case Success:
		return faultNone
	case Later:
		return faultLater
	case RemInvReqErr:
		return faultRequest
	case RemOpErr, FatalErr, GeneralErr:
		return faultInternal
	}
	return faultAccess
}

// deliver completes the message that b ends. It reports whether the queue pair lives.
func (q *QP) deliver(b *Burst, h Host) bool {
	rs := &q.resp
	rs.MSN = (rs.MSN + 1) & ib.PSNMask
	length := rs.Length
	kind := rs.Kind
	rs.Kind = 0
	if kind == KindWrite && b.Kind != KindWriteImm {
		return true
	}
	res := &h.Scratch().Result
	*res = RecvResult{ByteLen: length, Imm: b.Imm, Solicited: b.Solicited}
	switch b.Kind {
	case KindWriteImm:
		res.Op, res.HasImm = RecvWriteImm, true
	case KindSendImm:
		res.HasImm = true
	case KindSendInv:
		res.HasInv = true
		if st := h.InvalidateRemote(b.Imm); st != Success {
			// Class J: the message has arrived and is acknowledged, but
			// its receiver must not trust the key.
			q.finishRecv(RemInvReqErr, h)
			q.ack(ib.PSNAdd(rs.PSN, ib.PSNMask), h)
			q.enterError(h)
			return false
		}
	}
	rs.HaveRecv = false
	q.count.RDMARecvs++
	h.CompleteRecv(&rs.R, res)
	return true
}

// finishRecv ends the receive that is in use with an error.
func (q *QP) finishRecv(st Status, h Host) {
	q.resp.HaveRecv = false
	res := &h.Scratch().Result
	*res = RecvResult{Status: st, Solicited: true}
	h.CompleteRecv(&q.resp.R, res)
}

// refuse answers a request that cannot be carried out. All faults but RNR are fatal to
// the queue pair (IBA 9.9.3).
func (q *QP) refuse(f fault, psn uint32, h Host) {
	rs := &q.resp
	if f == faultRNR {
		rs.NakSent, rs.Waiting, rs.Ahead = true, true, psn
		q.count.SentRNR++
		q.nakSoon(RNRNak|q.attr.MinRNRTimer&0x1f, psn, h)
		return
	}
	syn, st, ev := uint8(NakInvalid), RemInvReqErr, EventReqErr
	switch f {
	case faultLength:
		st = LocLenErr
	case faultAccess:
		syn, st, ev = NakAccess, RemAccessErr, EventAccessErr
		q.count.AccessErrors++
	case faultRecv:
		syn, st = NakOperation, LocProtErr
		if rs.R.Bad != Success {
			st = rs.R.Bad
		}
	case faultInternal:
		syn, st = NakOperation, LocQPOpErr
	}
	// An error that a completion reports raises no event.
	if rs.HaveRecv {
		q.finishRecv(st, h)
		if f == faultAccess {
			h.Event(ev)
		}
	} else {
		h.Event(ev)
	}
	rs.Closing = true
	q.nakSoon(syn, psn, h)
}

// ack acknowledges psn and everything before it, after the responses still owed.
func (q *QP) ack(psn uint32, h Host) {
	rs := &q.resp
	if rs.Pending > 0 {
		rs.AckDue, rs.DuePSN = true, psn
		q.count.AckDeferred++
		return
	}
	q.answer(KindAck, psn, AckUnlimited, 0, rs.MSN, h)
}

// nakSoon sends a NAK after the responses still owed.
func (q *QP) nakSoon(syn uint8, psn uint32, h Host) {
	rs := &q.resp
	rs.NakDue, rs.NakSyn, rs.NakPSN = true, syn, psn
	if rs.Pending == 0 {
		q.owed(h)
	}
}

// owed sends the ACK and the NAK that had to wait.
func (q *QP) owed(h Host) {
	rs := &q.resp
	if rs.AckDue {
		rs.AckDue = false
		q.answer(KindAck, rs.DuePSN, AckUnlimited, 0, rs.MSN, h)
	}
	if rs.NakDue {
		rs.NakDue = false
		msn := rs.MSN
		if q.path.Own && rs.NakSyn == NakSequence {
			msn = rs.NakEnd
		}
		q.answer(KindAck, rs.NakPSN, rs.NakSyn, 0, msn, h)
	}
	if rs.Closing {
		rs.Closing = false
		q.enterError(h)
	}
}

// answer sends a response of one packet without data.
func (q *QP) answer(k Kind, psn uint32, syn uint8, orig uint64, msn uint32, h Host) {
	b := &h.Scratch().In
	q.address(b, k)
	b.First, b.Last, b.Packets = true, true, 1
	b.PSN, b.Syndrome, b.MSN, b.Orig = psn, syn, msn, orig
	q.transmit(b, h)
}
