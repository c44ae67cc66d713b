package transport

import "vrdma.dev/vrdma/internal/ib"

// responder is the receiving half of a queue pair: it carries out the peer's requests in
// the order of their PSNs and answers them.
//
//	        ┌── before PSN: a duplicate ──▶ answered once more from Res (resource.go)
//	request ┼── PSN: place, deliver ──▶ ACK; READs and atomics become a resource
//	        └── behind PSN: one is missing ──▶ NAK; our own hosts' are kept (stash.go)
//
// Responses leave in the order of their requests (IBA 9.7.5.1.1): as long as READ responses
// are to be sent, ACKs and NAKs wait in Owed. A fault that ends the connection is answered
// with a NAK too, so it waits with it (Closing) before the queue pair fails.
//
// It touches its own fields and, of what it shares with the requester, what common says.
type responder struct {
	PSN    uint32 // expected next
	AckPSN uint32 // one past the last SEND, WRITE or atomic that was carried out
	MSN    uint32 // messages carried out

	Established bool // CommEst has been raised
	Drop        bool // UC: ignore the rest of this message
	Closing     bool // a fatal NAK waits for READ responses before it
	HaveRecv    bool // R has been taken from the receive queue
	Stalled     bool // the next packet is in the stash, and its memory was not at hand
	Revoked     bool // the next request is answered with a NAK, see QP.Revoke

	Msg  message
	Owed answers
	Nak  naks
	// Requests that are ahead of the one expected are in the stash, under this
	// number; 0: none are.
	Episode uint32
	Newest  uint32 // one past the newest of them

	R   RecvWQE
	Res resources
}

// message is the SEND or WRITE in progress, Kind zero if there is none. Bursts of it are
// placed by their distance from PSN, so one that overlaps what has arrived already does no
// harm.
type message struct {
	PSN    uint32 // of its first packet
	Kind   Kind   // KindSend or KindWrite
	VA     uint64
	RKey   uint32
	Length uint32
}

// answers are the ACK and the NAK that wait for the READ responses before them.
type answers struct {
	Ack      bool
	Nak      bool
	Syndrome uint8 // of the NAK
	AckPSN   uint32
	NakPSN   uint32
	NakEnd   uint32 // where what NakPSN asks for ends; own hosts only
}

// naks is what the responder knows of what it has asked for.
type naks struct {
	Sent    bool    // the packet expected next has been asked for; the rest is ignored in silence
	Waiting bool    // an RNR NAK was sent; what follows will come again
	Ahead   uint32  // PSN of the newest packet that was ignored
	At      ib.Time // when the packet expected next was asked for
	To      uint32  // the end of what was last asked for
	HoleAt  ib.Time // the same as At, as long as it was asked for once; own hosts only
	Trip    ib.Time // how long what was asked for takes, smoothed
}

// stop ends the responder: nothing is owed to the peer any more, and the receive in use is
// flushed.
func (rs *responder) stop(c *respCall) {
	rs.Res.Pending, rs.Owed.Ack, rs.Owed.Nak, rs.Closing = 0, false, false, false
	rs.Msg.Kind = 0
	if rs.HaveRecv {
		rs.finishRecv(c, WRFlushErr)
	}
}

// flush completes with WRFlushErr what has been posted to the receive queue. A shared one is
// not the queue pair's to flush.
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

// listening reports whether the responder takes requests, and raises the event that
// tells an application in RTR that its peer is already talking.
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

// receiveReliable is the RC responder: it takes a request, and after it those that have
// been waiting for it.
func (rs *responder) receiveReliable(c *respCall, b *Burst) (taken bool) {
	taken = rs.takeRequest(c, b)
	if taken && rs.Episode != 0 {
		rs.unstash(c)
	}
	return taken
}

// takeRequest takes one request (IBA 9.7.4 and 9.9.3): order, validity, resources, execution,
// acknowledgement.
//
// A burst that has to be offered again (Later) may have taken a receive and begun a message.
// Both are noted, so that it then goes on from there.
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
		rs.refuse(c, f, rs.PSN) // b may begin before it
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

// overlaps reports whether b begins with packets that have arrived already, goes on
// with new ones and belongs to the message in progress.
func (rs *responder) overlaps(b *Burst) bool {
	old := ib.PSNDist(b.PSN, rs.PSN)
	if b.Packets <= old || rs.Msg.Kind == 0 || b.Kind.base() != rs.Msg.Kind {
		return false
	}
	at := ib.PSNDist(rs.Msg.PSN, b.PSN)
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

// place checks a burst of a SEND or WRITE and copies its data to where it belongs. The
// whole range of a WRITE is checked before its first byte is written.
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

// startMessage notes where the message that begins with b goes. For a WRITE that is
// all in one burst the copying checks what would be checked here.
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

// copyIn puts n bytes at offset off of the message in progress into place.
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
			// Class J: the message has arrived and is acknowledged, but
			// its receiver must not trust the key.
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

// finishRecv ends the receive that is in use with an error.
func (rs *responder) finishRecv(c *respCall, st Status) {
	rs.HaveRecv = false
	res := &c.sc.Result
	*res = RecvResult{Status: st, Solicited: true}
	c.h.CompleteRecv(&rs.R, res)
}

// refuse answers a request that cannot be carried out. All faults but RNR are fatal to
// the queue pair (IBA 9.9.3).
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

// ack acknowledges psn and everything before it, after the responses still owed.
func (rs *responder) ack(c *respCall, psn uint32) {
	if rs.Res.Pending > 0 {
		rs.Owed.Ack, rs.Owed.AckPSN = true, psn
		c.Count.AckDeferred++
		return
	}
	rs.answer(c, KindAck, psn, AckUnlimited, 0, rs.MSN)
}

// nakSoon sends a NAK after the responses still owed.
func (rs *responder) nakSoon(c *respCall, syn uint8, psn uint32) {
	rs.Owed.Nak, rs.Owed.Syndrome, rs.Owed.NakPSN = true, syn, psn
	if rs.Res.Pending == 0 {
		rs.sendOwed(c)
	}
}

// sendOwed sends the ACK and the NAK that had to wait.
func (rs *responder) sendOwed(c *respCall) {
	if rs.Owed.Ack {
		rs.Owed.Ack = false
		rs.answer(c, KindAck, rs.Owed.AckPSN, AckUnlimited, 0, rs.MSN)
	}
	if rs.Owed.Nak {
		rs.Owed.Nak = false
		msn := rs.MSN
		if c.Path.Own && rs.Owed.Syndrome == NakSequence {
			msn = rs.Owed.NakEnd
		}
		rs.answer(c, KindAck, rs.Owed.NakPSN, rs.Owed.Syndrome, 0, msn)
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
