package transport

import "vrdma.dev/vrdma/internal/ib"

// responder is the receiving half of a queue pair. It executes the peer's requests in PSN order and answers
// them.
//
//	        ┌── before PSN: a duplicate ──▶ answered again from Res (resource.go)
//	request ┼── PSN: place, deliver ──▶ ACK; READs and atomics become a resource
//	        └── after PSN: one is missing ──▶ NAK; packets of vrdma hosts are stored (stash.go)
//
// Responses leave in the order of their requests (IBA 9.7.5.1.1): while READ responses are pending, ACKs and
// NAKs wait in Delayed. A fatal error is also answered with a NAK, which waits in the same way (Closing) before
// the queue pair fails.
//
// It accesses its own fields, and the shared fields of common.
type responder struct {
	PSN    uint32 `cbor:"1,keyasint,omitempty"` // next expected PSN
	AckPSN uint32 `cbor:"2,keyasint,omitempty"` // one past the last executed SEND, WRITE or atomic
	MSN    uint32 `cbor:"3,keyasint,omitempty"` // number of executed messages

	Established bool `cbor:"4,keyasint,omitempty"` // CommEst has been raised
	Drop        bool `cbor:"5,keyasint,omitempty"` // UC: ignore the rest of this message
	Closing     bool `cbor:"6,keyasint,omitempty"` // a fatal NAK waits for READ responses
	HaveRecv    bool `cbor:"7,keyasint,omitempty"` // R has been taken from the receive queue
	Stalled     bool `cbor:"8,keyasint,omitempty"` // the next packet is in the stash, and its memory is not available
	Revoked     bool `cbor:"9,keyasint,omitempty"` // answer the next request with a NAK, see QP.Revoke

	Msg     message `cbor:"10,keyasint,omitzero"`
	Delayed answers `cbor:"11,keyasint,omitzero"`
	Nak     naks    `cbor:"12,keyasint,omitzero"`
	// Episode identifies this queue pair's early packets in the stash; 0 means none.
	Episode uint32 `cbor:"-"`
	Newest  uint32 `cbor:"13,keyasint,omitempty"` // one past the newest of them

	R   RecvWQE   `cbor:"14,keyasint,omitzero"`
	Res resources `cbor:"15,keyasint"`
}

// message is the SEND or WRITE in progress; Kind is zero if there is none. The distance of a burst from PSN is
// its offset in the message, so a burst that overlaps received data is harmless.
type message struct {
	PSN    uint32 `cbor:"1,keyasint,omitempty"` // of its first packet
	Kind   Kind   `cbor:"2,keyasint,omitempty"` // KindSend or KindWrite
	VA     uint64 `cbor:"3,keyasint,omitempty"`
	RKey   uint32 `cbor:"4,keyasint,omitempty"`
	Length uint32 `cbor:"5,keyasint,omitempty"`
}

// answers are the ACK and the NAK that wait for earlier READ responses.
type answers struct {
	Ack      bool   `cbor:"1,keyasint,omitempty"`
	Nak      bool   `cbor:"2,keyasint,omitempty"`
	Syndrome uint8  `cbor:"3,keyasint,omitempty"` // syndrome of the NAK
	AckPSN   uint32 `cbor:"4,keyasint,omitempty"`
	NakPSN   uint32 `cbor:"5,keyasint,omitempty"`
	NakEnd   uint32 `cbor:"6,keyasint,omitempty"` // end of the range that NakPSN requests; vrdma hosts only
}

// naks records which packets the responder has requested again.
type naks struct {
	Sent    bool    `cbor:"1,keyasint,omitempty"` // the expected packet has been requested; others are ignored
	Waiting bool    `cbor:"2,keyasint,omitempty"` // an RNR NAK was sent; the requester will send again
	Ahead   uint32  `cbor:"3,keyasint,omitempty"` // PSN of the newest ignored packet
	At      ib.Time `cbor:"4,keyasint,omitempty"` // when the expected packet was requested
	To      uint32  `cbor:"5,keyasint,omitempty"` // end of the last requested range
	HoleAt  ib.Time `cbor:"6,keyasint,omitempty"` // equal to At while the packet was requested only once; vrdma hosts only
	Trip    ib.Time `cbor:"7,keyasint,omitempty"` // smoothed time from a request to its packet
}

// stop stops the responder: it discards pending responses and flushes the receive in use.
func (rs *responder) stop(c *respCall) {
	rs.Res.Pending, rs.Delayed.Ack, rs.Delayed.Nak, rs.Closing = 0, false, false, false
	rs.Msg.Kind = 0
	if rs.HaveRecv {
		rs.finishRecv(c, WRFlushErr)
	}
}

// flush completes posted receives with WRFlushErr. The queue pair does not flush a shared receive queue.
func (rs *responder) flush(c *respCall) (more bool) {
	if c.State != ib.StateError || c.Conf.SRQ {
		return false
	}
	for range flushBatch {
		if !c.h.TakeRecv(&rs.R) {
			return false
		}
		rs.HaveRecv = true
		rs.finishRecv(c, WRFlushErr)
	}
	return true
}

// listening reports whether the responder accepts requests. It raises the event CommEst for the first packet
// in RTR.
func (rs *responder) listening(c *respCall) bool {
	switch c.State {
	case ib.StateRTS, ib.StateSQD, ib.StateSQE:
		return true
	case ib.StateRTR:
		if !rs.Established {
			rs.Established = true
			c.h.Event(EventCommEst)
		}
		return true
	}
	return false
}

// fault is the reason why a request cannot be executed.
type fault uint8

const (
	faultNone     fault = iota
	faultRNR            // no receive is posted
	faultRequest        // the request is invalid
	faultLength         // the message is longer than the receive
	faultAccess         // key, bounds or rights of the remote address
	faultRecv           // the receive itself is unusable
	faultInternal       // an error while accessing memory
	faultLater          // the memory is not available yet; not an error
)

// receiveReliable returns the RC responder: it processes a request, and then the stashed requests after it.
func (rs *responder) receiveReliable(c *respCall, b *Burst) (taken bool) {
	taken = rs.takeRequest(c, b)
	if taken && rs.Episode != 0 {
		rs.unstash(c)
	}
	return taken
}

// takeRequest processes one request (IBA 9.7.4 and 9.9.3): order, validity, resources, execution,
// acknowledgement.
//
// A burst that must be offered again (Later) may have consumed a receive and started a message. The state
// records both, so that the next attempt continues from there.
func (rs *responder) takeRequest(c *respCall, b *Burst) (taken bool) {
	if !rs.listening(c) || rs.Closing {
		if rs.Revoked {
			rs.dismiss(c, b)
		}
		c.Count.Dropped++
		return true
	}
	switch d := ib.PSNDist(rs.PSN, b.PSN); {
	case d == 0:
	case d < ib.PSNHalf:
		if c.Path.Own {
			rs.stashSoon(c, b)
			return true
		}
		rs.outOfSequence(c, b.PSN)
		return true
	case !rs.overlaps(b):
		rs.duplicate(c, b)
		return true
	}
	if rs.Nak.Sent {
		rs.Nak.heard(c.now)
		rs.Nak.Sent, rs.Nak.Waiting = false, false
	}
	if b.Kind.base() == 0 {
		if rs.Msg.Kind != 0 || !b.First || !b.Last || b.Packets != 1 {
			rs.refuse(c, faultRequest, b.PSN)
			return true
		}
		return rs.receiveRD(c, b)
	}
	if f := rs.place(c, b); f != faultNone {
		if f == faultLater {
			return false
		}
		rs.Nak.At = c.now
		rs.refuse(c, f, rs.PSN) // not b.PSN: b may begin before rs.PSN
		return true
	}
	if b.Last && !rs.deliver(c, b) {
		return true
	}
	if b.AckReq {
		rs.ack(c, ib.PSNAdd(rs.PSN, ib.PSNMask))
	}
	return true
}

// overlaps reports whether b begins with packets already received, continues with new ones and belongs to the
// message in progress.
func (rs *responder) overlaps(b *Burst) bool {
	old := ib.PSNDist(b.PSN, rs.PSN)
	if b.Packets <= old || rs.Msg.Kind == 0 || b.Kind.base() != rs.Msg.Kind {
		return false
	}
	at := ib.PSNDist(rs.Msg.PSN, b.PSN)
	return at < ib.PSNHalf && b.First == (at == 0)
}

// nakAgain is how long a requested packet may take before it is requested again. Each NAK costs the requester
// one retry, so a network that reorders must not cause many of them; vrdma requesters do not count them.
const (
	nakAgain    = ib.Time(250_000)
	nakAgainOwn = ib.Time(20_000)
)

// outOfSequence requests the missing packet: once, and again if the requester has gone back since and the
// packet is still missing.
func (rs *responder) outOfSequence(c *respCall, psn uint32) {
	forward := ib.PSNDist(rs.Nak.Ahead, psn)
	rs.Nak.Ahead = psn
	if rs.Nak.Sent && (forward != 0 && forward < ib.PSNHalf || c.now-rs.Nak.At < nakAgain) {
		c.Count.Dropped++
		return
	}
	rs.Nak.Sent, rs.Nak.At = true, c.now
	c.Count.OutOfSequence++
	rs.nakSoon(c, NakSequence, rs.PSN)
}

// place checks a burst of a SEND or WRITE and copies its data to its destination. It checks the whole range of
// a WRITE before it writes the first byte.
func (rs *responder) place(c *respCall, b *Burst) fault {
	base := b.Kind.base()
	first := b.First && (rs.Msg.Kind == 0 || b.PSN != rs.Msg.PSN)
	if first == (rs.Msg.Kind != 0) || !first && base != rs.Msg.Kind {
		return faultRequest
	}
	n := b.size()
	if !b.wellFormed(n, c.Attr.MTU) {
		return faultRequest
	}
	if c.Attr.Denied != 0 && c.denies(base) {
		return faultAccess
	}
	if base == KindWrite && c.Attr.Access&ib.AccessRemoteWrite == 0 {
		return faultRequest
	}
	if (base == KindSend && first || b.Kind == KindWriteImm && b.Last) && !rs.HaveRecv {
		if !c.h.TakeRecv(&rs.R) {
			return faultRNR
		}
		rs.HaveRecv = true
		if rs.R.Bad != Success {
			return faultRecv
		}
	}
	if first {
		if f := rs.startMessage(c, b, base, n); f != faultNone {
			return f
		}
	}
	off := ib.PSNDist(rs.Msg.PSN, b.PSN) * c.Attr.MTU
	if f := rs.copyIn(c, b, off, n); f != faultNone {
		return f
	}
	rs.PSN = ib.PSNAdd(b.PSN, b.Packets)
	rs.AckPSN = rs.PSN
	rs.Msg.Length = max(rs.Msg.Length, off+n)
	return faultNone
}

// startMessage records the destination of the message that begins with b. It skips the check of a WRITE in a
// single burst, because WriteRemote makes the same check.
func (rs *responder) startMessage(c *respCall, b *Burst, base Kind, n uint32) fault {
	if base == KindWrite {
		if b.Length > MaxMessage {
			return faultRequest
		}
		if b.Length > 0 && !(b.Last && n == b.Length) {
			if st := c.h.CheckRemote(b.RKey, b.VA, b.Length, ib.AccessRemoteWrite); st != Success {
				return remoteFault(st)
			}
		}
		rs.Msg.VA, rs.Msg.RKey, rs.Msg.Length = b.VA, b.RKey, b.Length
	} else {
		rs.Msg.Length = 0
	}
	rs.Msg.Kind, rs.Msg.PSN = base, b.PSN
	return faultNone
}

// copyIn copies n bytes to offset off of the message in progress.
func (rs *responder) copyIn(c *respCall, b *Burst, off, n uint32) fault {
	if rs.Msg.Kind == KindWrite {
		end := uint64(off) + uint64(n)
		if end > uint64(rs.Msg.Length) || b.Last && end != uint64(rs.Msg.Length) {
			return faultRequest
		}
		if n > 0 {
			if st := c.h.WriteRemote(rs.Msg.RKey, rs.Msg.VA+uint64(off), b.Data); st != Success {
				return remoteFault(st)
			}
		}
		return faultNone
	}
	if uint64(off)+uint64(n) > uint64(rs.R.Length) {
		return faultLength
	}
	if n > 0 {
		if st := c.h.ScatterRecv(&rs.R, off, b.Data); st != Success {
			if st == Later {
				return faultLater
			}
			return faultRecv
		}
	}
	return faultNone
}

// remoteFault maps the NIC's status of a remote access to a fault.
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

// deliver completes the message that b ends. It returns false if the queue pair failed.
func (rs *responder) deliver(c *respCall, b *Burst) bool {
	rs.MSN = (rs.MSN + 1) & ib.PSNMask
	c.countMessage(&c.Count.RcvdMessages, b)
	length := rs.Msg.Length
	kind := rs.Msg.Kind
	rs.Msg.Kind = 0
	if kind == KindWrite && b.Kind != KindWriteImm {
		return true
	}
	res := &c.sc.Result
	*res = RecvResult{ByteLen: length, Imm: b.Imm, Solicited: b.Solicited}
	switch b.Kind {
	case KindWriteImm:
		res.Op, res.HasImm = RecvWriteImm, true
	case KindSendImm:
		res.HasImm = true
	case KindSendInv:
		res.HasInv = true
		if st := c.h.InvalidateRemote(b.Imm); st != Success {
			// Error class J: the message has arrived and is acknowledged, but the completion reports
			// that the key was not invalidated.
			rs.finishRecv(c, RemInvReqErr)
			rs.ack(c, ib.PSNAdd(rs.PSN, ib.PSNMask))
			c.fail()
			return false
		}
	}
	rs.HaveRecv = false
	c.Count.RDMARecvs++
	c.h.CompleteRecv(&rs.R, res)
	return true
}

// finishRecv completes the receive in use with an error.
func (rs *responder) finishRecv(c *respCall, st Status) {
	rs.HaveRecv = false
	res := &c.sc.Result
	*res = RecvResult{Status: st, Solicited: true}
	c.h.CompleteRecv(&rs.R, res)
}

// refuse answers a request that cannot be executed. All faults except RNR are fatal to the queue pair
// (IBA 9.9.3).
func (rs *responder) refuse(c *respCall, f fault, psn uint32) {
	if f == faultRNR {
		rs.Nak.Sent, rs.Nak.Waiting, rs.Nak.Ahead = true, true, psn
		c.Count.SentRNR++
		rs.nakSoon(c, RNRNak|c.Attr.MinRNRTimer&0x1f, psn)
		return
	}
	syn, st, ev := uint8(NakInvalid), RemInvReqErr, EventReqErr
	switch f {
	case faultLength:
		st = LocLenErr
	case faultAccess:
		syn, st, ev = NakAccess, RemAccessErr, EventAccessErr
		c.Count.AccessErrors++
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
		rs.finishRecv(c, st)
		if f == faultAccess {
			c.h.Event(ev)
		}
	} else {
		c.h.Event(ev)
	}
	rs.Closing = true
	rs.nakSoon(c, syn, psn)
}

// ack acknowledges psn and everything before it, after the pending responses.
func (rs *responder) ack(c *respCall, psn uint32) {
	if rs.Res.Pending > 0 {
		rs.Delayed.Ack, rs.Delayed.AckPSN = true, psn
		c.Count.AckDeferred++
		return
	}
	rs.answer(c, KindAck, psn, AckUnlimited, 0, rs.MSN)
}

// nakSoon sends a NAK after the pending responses.
func (rs *responder) nakSoon(c *respCall, syn uint8, psn uint32) {
	rs.Delayed.Nak, rs.Delayed.Syndrome, rs.Delayed.NakPSN = true, syn, psn
	if rs.Res.Pending == 0 {
		rs.sendDelayed(c)
	}
}

// sendDelayed sends the ACK and the NAK that waited.
func (rs *responder) sendDelayed(c *respCall) {
	if rs.Delayed.Ack {
		rs.Delayed.Ack = false
		rs.answer(c, KindAck, rs.Delayed.AckPSN, AckUnlimited, 0, rs.MSN)
	}
	if rs.Delayed.Nak {
		rs.Delayed.Nak = false
		msn := rs.MSN
		if c.Path.Own && rs.Delayed.Syndrome == NakSequence {
			msn = rs.Delayed.NakEnd
		}
		rs.answer(c, KindAck, rs.Delayed.NakPSN, rs.Delayed.Syndrome, 0, msn)
	}
	if rs.Closing {
		rs.Closing = false
		c.fail()
	}
}

// answer sends a response of one packet without data.
func (rs *responder) answer(c *respCall, k Kind, psn uint32, syn uint8, orig uint64, msn uint32) {
	b := &c.sc.In
	c.address(b, k)
	b.First, b.Last, b.Packets = true, true, 1
	b.PSN, b.Syndrome, b.MSN, b.Orig = psn, syn, msn, orig
	c.transmit(b)
}
