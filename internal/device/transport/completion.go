package transport

import "vrdma.dev/vrdma/internal/ib"

// This file completes the requester's work requests, one by one and in order: with success, with the
// error of the first that failed, or flushed.

// finish completes the request w, which is the one at Tail.
func (r *requester) finish(c *reqCall, w *SendWQE, st Status) {
	if r.RDOut > 0 && w.Op.isRD() && int32(r.Pos-r.Tail) > 0 {
		r.RDOut--
	}
	r.Tail++
	bytes := w.Length
	if w.Op == WRCmpSwap || w.Op == WRFetchAdd || w.Op == WRAtomicWrite {
		bytes = 8
	}
	c.h.CompleteSend(w, st, bytes)
}

// packetsAt loads into w what completing the request at pos needs, and returns its number of packets.
// It uses the notes in sentRequests if they still exist, and fetches the request again otherwise.
func (r *requester) packetsAt(c *reqCall, pos uint32, w *SendWQE) (packets uint32, ok bool) {
	if int32(r.Started-pos) > 0 {
		if packets, ok = r.Sent.find(pos, w); ok {
			return packets, true
		}
	}
	if !c.h.FetchSend(pos, w) {
		return 0, false
	}
	if w.Op.isLocal() {
		return 0, true
	}
	if w.Op.isRD() && w.Op != WRRead {
		return 1, true
	}
	return packetsOf(w.Length, c.Attr.MTU), true
}

// completeUnreliable completes the UC or UD request whose last packet has just been sent.
func (r *requester) completeUnreliable(c *reqCall) {
	r.Una, r.TailPSN = r.PSN, r.PSN
	r.finish(c, &r.W, Success)
	r.tailMoved(c)
}

// completeLocal completes local operations at the head of the queue.
func (r *requester) completeLocal(c *reqCall) {
	w := &c.sc.Done
	for r.Tail != r.Started && (r.FailStatus == Success || r.Tail != r.FailPos) {
		if _, ok := r.packetsAt(c, r.Tail, w); !ok || !w.Op.isLocal() {
			break
		}
		r.finish(c, w, Success)
	}
	r.tailMoved(c)
}

// tailMoved handles the consequences of a new Tail: a request that could not be sent fails now, or the
// queue is drained. If Tail has overtaken Pos, it moves Pos forward.
func (r *requester) tailMoved(c *reqCall) {
	if !r.Repair.Active && (int32(r.Tail-r.Pos) > 0 || ib.PSNDist(r.Una, r.PSN) > ib.PSNDist(r.Una, r.Max)) {
		r.rewind()
	}
	if r.FailStatus != Success && r.Tail == r.FailPos {
		r.failTail(c, r.FailStatus)
		return
	}
	r.checkDrained(c)
}

// checkDrained detects that a queue pair in SQD has nothing in flight any more.
func (r *requester) checkDrained(c *reqCall) {
	if c.State != ib.StateSQD || r.Drained || r.Tail != r.Started {
		return
	}
	r.Drained = true
	if c.Attr.SQDAsyncNotify {
		c.h.Event(EventSQDrained)
	}
}

// failHere records that the request at Pos cannot be sent. The requests before it complete first.
func (r *requester) failHere(c *reqCall, st Status) {
	r.FailPos, r.FailStatus = r.Pos, st
	r.Repair.Active, r.Repair.Gaps.Num = false, 0
	c.Count.SendErrors++
	if r.Pos == r.Started {
		r.begin(packetsOf(r.W.Length, c.Attr.MTU))
	}
	r.tailMoved(c)
}

// failTail completes the request at Tail with an error and stops the send queue.
func (r *requester) failTail(c *reqCall, st Status) {
	w := &c.sc.Done
	if _, ok := r.packetsAt(c, r.Tail, w); ok {
		r.finish(c, w, st)
	}
	if c.Conf.Type == ib.RC {
		c.fail()
		r.stop()
		return
	}
	c.State = ib.StateSQE
	r.stop()
	r.flush(c)
}

// stop discards the state of everything in flight.
func (r *requester) stop() {
	r.Pos, r.Started = r.Tail, r.Tail
	r.TailPSN, r.Una, r.Max = r.PSN, r.PSN, r.PSN
	r.Off, r.RDOut, r.Unasked = 0, 0, 0
	r.Loaded, r.Blocked = false, false
	r.FailStatus = Success
	r.Repair.stop(r.Una)
	r.Reads.clear()
	r.Loss.stop()
	r.CC.stop(r.Una)
}

// flushBatch limits one round of flushing, so that an application that posts without end cannot block
// the engine. RunPending reports that there is more.
const flushBatch = 1 << 6

// flush completes posted work requests with WRFlushErr.
func (r *requester) flush(c *reqCall) (more bool) {
	w := &c.sc.Done
	for range flushBatch {
		if !c.h.FetchSend(r.Tail, w) {
			return false
		}
		r.finish(c, w, WRFlushErr)
		r.Pos, r.Started = r.Tail, r.Tail
	}
	return true
}
