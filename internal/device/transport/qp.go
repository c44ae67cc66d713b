package transport

import "vrdma.dev/vrdma/internal/ib"

// A QP is one queue pair: the state of its requester and of its responder. It has no pointers. Between two
// calls it may be copied or frozen, as long as only one copy is used afterwards.
//
//	       Modify              Modify             Modify
//	RESET ───────▶ INIT ───────▶ RTR ───────▶ RTS ◀──────▶ SQD
//	                 │            │           ▲ │            │
//	                 │            │    Modify │ │ a send of UC or UD failed
//	                 │            │           SQE            │
//	                 └────────────┴─────┬───────┴────────────┘
//	                                    ▼ Modify, or a fatal fault
//	                                  ERROR: both queues are flushed
//
// The NIC checks which transitions an application may request, and with which attributes. Modify does not.
type QP struct {
	common common
	req    requester
	resp   responder
	cnp    notifier
}

// Defaults of Config.
const (
	defaultBurst  = 64 << 10
	defaultWindow = 8192
	defaultMTU    = 4096
)

// Init initializes q as a new queue pair in the state RESET.
func (q *QP) Init(c Config) {
	if c.MaxBurst == 0 {
		c.MaxBurst = defaultBurst
	}
	if c.Window == 0 || c.Window > ib.PSNHalf-1 {
		c.Window = defaultWindow
	}
	if c.MTU == 0 {
		c.MTU = defaultMTU
	}
	*q = QP{common: common{Conf: c}}
	q.common.Attr.MTU = c.MTU
	q.SetPath(Path{})
}

// State returns the current state.
func (q *QP) State() ib.State { return q.common.State }

// Config returns what Init was called with, and defaults.
func (q *QP) Config() Config { return q.common.Conf }

// Addresses returns the addresses of a connected queue pair and of its peer.
func (q *QP) Addresses() (sgid, dgid ib.GID) { return q.common.Attr.SGID, q.common.Attr.DGID }

// Counters returns the queue pair's counters, which the caller may read in place.
func (q *QP) Counters() *Counters { return &q.common.Count }

func (q *QP) reqCall(now ib.Time, h *Env) reqCall {
	return reqCall{&q.common, now, h.requester, h.link, h.scratch}
}

func (q *QP) respCall(now ib.Time, h *Env) respCall {
	return respCall{&q.common, now, h.responder, h.link, h.scratch}
}

// endCall ends every call that may have moved the queue pair to the state Error.
func (q *QP) endCall(now ib.Time, h *Env) {
	if q.common.Failed {
		q.flushFailed(now, h)
	}
}

// flushFailed stops both halves and flushes their queues.
func (q *QP) flushFailed(now ib.Time, h *Env) {
	q.common.Failed = false
	rc, sc := q.reqCall(now, h), q.respCall(now, h)
	q.req.stop()
	q.resp.stop(&sc)
	more := q.req.flush(&rc)
	q.req.Kick = q.resp.flush(&sc) || more
	if q.common.Conf.SRQ {
		h.responder.Event(EventLastWQE)
	}
}

// Flush completes with WRFlushErr the work requests posted in the state Error, and sends posted in SQE.
func (q *QP) Flush(now ib.Time, h *Env) {
	if q.common.State == ib.StateError || q.common.State == ib.StateSQE {
		rc, sc := q.reqCall(now, h), q.respCall(now, h)
		more := q.req.flush(&rc)
		q.req.Kick = q.resp.flush(&sc) || more
	}
}

// RunPending reports whether there is new work for Run since its last call.
func (q *QP) RunPending() bool { return q.req.Kick }

// Run sends up to about budget bytes of payload and reports whether it can send more at once.
func (q *QP) Run(now ib.Time, budget int, h *Env) (more bool) {
	c := q.reqCall(now, h)
	more = q.req.run(&c, budget)
	q.endCall(now, h)
	return more
}

// RespondPending reports whether Respond has something to do.
func (q *QP) RespondPending() bool { return q.resp.pending(&q.common) }

// Respond sends READ responses, up to about budget bytes, and reports whether it can send more at once. It
// also continues requests whose memory was not available.
func (q *QP) Respond(now ib.Time, budget int, h *Env) (more bool) {
	c := q.respCall(now, h)
	more = q.resp.respond(&c, budget)
	q.endCall(now, h)
	return more
}

// ResponsePSN returns the PSN of the first packet of the READ response that Respond sends next. A NIC that
// answered Later uses it to identify the READ.
func (q *QP) ResponsePSN() uint32 {
	e := &q.resp.Res.Ring[q.resp.Res.Next]
	return ib.PSNAdd(e.PSN, e.Off/q.common.Attr.MTU)
}

// Stalled reports whether received requests wait for memory; Respond continues them.
func (q *QP) Stalled() bool { return q.resp.Stalled }

// InFlight returns the number of bytes sent or requested but not acknowledged or answered. Each packet
// counts as a full MTU.
func (q *QP) InFlight() uint64 {
	return uint64(ib.PSNDist(q.req.Una, q.req.Max)) * uint64(q.common.Attr.MTU)
}

// SetSendPos sets the position of the next work request in the send queue, for a NIC whose ring does not
// restart at zero after RESET.
func (q *QP) SetSendPos(pos uint32) {
	q.req.Tail, q.req.Pos, q.req.Started = pos, pos, pos
}

// Deadline returns the time at which the caller must call Expire; zero means never.
func (q *QP) Deadline() ib.Time {
	d := q.req.Loss.deadline(q.common.Path.Remote)
	if q.common.Pace.Waiting {
		d = earlier(d, q.common.Pace.At)
	}
	if q.req.CC.Held {
		d = earlier(d, q.req.CC.SendAt)
	}
	return d
}

// earlier returns the earlier of two deadlines, where zero means never.
func earlier(a, b ib.Time) ib.Time {
	if a == 0 || b != 0 && b < a {
		return b
	}
	return a
}

// Expire handles a deadline that has passed. The next Run sends what it makes ready.
func (q *QP) Expire(now ib.Time, h *Env) {
	if p := &q.common.Pace; p.Waiting && now >= p.At {
		p.Waiting = false
		q.req.Kick = true
	}
	if cc := &q.req.CC; cc.Held && now >= cc.SendAt {
		cc.Held = false
		q.req.Kick = true
	}
	if q.common.running() {
		c := q.reqCall(now, h)
		q.req.expire(&c)
		q.endCall(now, h)
	}
}

// Blocked reports whether Run stopped because it must wait for a response: window, fence or initiator depth.
func (q *QP) Blocked() bool { return q.req.Blocked }

// WaitsForReceiver reports whether the requester waits after an RNR NAK.
func (q *QP) WaitsForReceiver() bool { return q.req.Loss.RNRAt != 0 && q.common.running() }

// ReceiverReady ends the wait after an RNR NAK early. The timer in the NAK is the receiver's estimate. On one
// host the engine sees that a receive has been posted. Another queue pair may take it from a shared queue,
// so this attempt does not count as a retry.
func (q *QP) ReceiverReady() {
	if !q.WaitsForReceiver() {
		return
	}
	v := &q.req.Loss
	v.RNRAt, q.req.Kick = 0, true
	if v.RNRRetry < q.common.Attr.RNRRetry {
		v.RNRRetry++
	}
}

// Excuse restarts the timeout: on one host the engine knows that the peer is alive and busy.
func (q *QP) Excuse(now ib.Time) {
	if q.req.Loss.RetransAt != 0 {
		q.req.restartTimer(&q.common, now)
	}
}

// Receive processes a burst for this queue pair. The burst's data is valid only during the call. Receive
// drops, without an answer, anything that does not come from the peer.
//
// It returns false if the NIC answered Later because it could not reach the memory. Then the caller offers b
// again before any other burst. Not offering it is harmless: the packet counts as lost.
func (q *QP) Receive(now ib.Time, b *Burst, h *Env) (taken bool) {
	c := &q.common
	if q.resp.Stalled && !q.unstall(now, h) {
		return false
	}
	if b.Type != c.Conf.Type || b.Packets == 0 || b.Packets > ib.PSNHalf || b.PSN > ib.PSNMask {
		c.Count.Dropped++
		return true
	}
	if d := b.PKey ^ c.Attr.PKey; d&0x7fff != 0 || (b.PKey|c.Attr.PKey)&0x8000 == 0 {
		c.Count.BadPKey++
		return true
	}
	if b.Type == ib.UD {
		taken = q.dispatchDatagram(now, b, h)
	} else {
		taken = q.dispatch(now, b, h)
	}
	if taken {
		c.Count.RcvdPackets += uint64(b.Packets)
		c.Count.RcvdBytes += uint64(b.size())
	}
	q.endCall(now, h)
	return taken
}

// unstall continues requests whose memory was not available. It reports whether none is left.
func (q *QP) unstall(now ib.Time, h *Env) bool {
	c := q.respCall(now, h)
	done := q.resp.unstall(&c)
	q.endCall(now, h)
	return done
}

// dispatch passes b to the half of a connected queue pair that handles it.
func (q *QP) dispatch(now ib.Time, b *Burst, h *Env) (taken bool) {
	c := &q.common
	if b.Src != c.Attr.DestQPN || b.SGID != c.Attr.DGID || b.DGID != c.Attr.SGID {
		c.Count.Dropped++
		c.Count.WrongPeer++
		return true
	}
	if b.CE {
		q.notify(now, b, h)
	}
	switch {
	case b.Kind < KindReadResp && b.Type == ib.RC:
		rc := q.respCall(now, h)
		return q.resp.receiveReliable(&rc, b)
	case b.Kind < KindReadResp:
		rc := q.respCall(now, h)
		return q.resp.receiveUnreliable(&rc, b)
	case b.Kind == KindCNP:
		q.Congested(now, b.SGID)
	case b.Type == ib.RC:
		rc := q.reqCall(now, h)
		return q.req.receiveResponse(&rc, b)
	default:
		c.Count.Dropped++
	}
	return true
}

// dispatchDatagram is dispatch for UD.
func (q *QP) dispatchDatagram(now ib.Time, b *Burst, h *Env) (taken bool) {
	if b.Kind == KindCNP {
		q.Congested(now, b.SGID)
		return true
	}
	rc := q.respCall(now, h)
	if !q.resp.acceptDatagram(&rc, b) {
		return true
	}
	if b.CE {
		q.notify(now, b, h)
	}
	return q.resp.receiveDatagram(&rc, b)
}
