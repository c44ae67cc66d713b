package transport

// Completing work requests, in order, one by one: the end of every requester story,
// happy or not.

// finish retires the request in w, which is the one at Tail, and reports it.
func (q *QP) finish(w *SendWQE, st Status, h Host) {
	r := &q.req
	if r.RDOut > 0 && w.Op.isRD() && int32(r.Pos-r.Tail) > 0 {
		r.RDOut--
	}
	r.Tail++
	h.RetireSend(r.Tail)
	bytes := w.Length
	if w.Op == WRCmpSwap || w.Op == WRFetchAdd || w.Op == WRAtomicWrite {
		bytes = 8
	}
	h.CompleteSend(w, st, bytes)
}

// tail brings the request at Tail into w, from the record made when it was started if
// that is still there.
func (q *QP) tail(w *SendWQE, h Host) (packets uint32, ok bool) {
	return q.packetsAt(q.req.Tail, w, h)
}

// packetsAt brings the request at pos into w, as far as completing it needs, and counts
// its packets.
func (q *QP) packetsAt(pos uint32, w *SendWQE, h Host) (packets uint32, ok bool) {
	r := &q.req
	rec := &r.Recent[pos%uint32(len(r.Recent))]
	if rec.Pos == pos && int32(r.Started-pos) > 0 {
		w.Pos, w.WRID, w.Op, w.Flags, w.Length = rec.Pos, rec.WRID, rec.Op, rec.Flags, rec.Length
		w.NumSGE = 0
		return rec.Packets, true
	}
	if !h.FetchSend(pos, w) {
		return 0, false
	}
	if w.Op.isLocal() {
		return 0, true
	}
	if w.Op.isRD() && w.Op != WRRead {
		return 1, true
	}
	return packetsOf(w.Length, q.attr.MTU), true
}

// completeUnreliable ends the UC or UD request that has just been sent whole.
func (q *QP) completeUnreliable(h Host) {
	r := &q.req
	r.Una, r.TailPSN = r.PSN, r.PSN
	q.finish(&r.W, Success, h)
	q.settle(h)
}

// completeLocal ends the local operations that nothing before them holds up.
func (q *QP) completeLocal(h Host) {
	r := &q.req
	w := &h.Scratch().Done
	for r.Tail != r.Started && (r.FailStatus == Success || r.Tail != r.FailPos) {
		if _, ok := q.tail(w, h); !ok || !w.Op.isLocal() {
			break
		}
		q.finish(w, Success, h)
	}
	q.settle(h)
}

// settle looks at what a moved Tail has made possible: the failure of a request that
// could not be sent, or the end of draining; and if the place to send from has been
// overtaken, it catches up.
func (q *QP) settle(h Host) {
	r := &q.req
	if !r.Repairing && (int32(r.Tail-r.Pos) > 0 || psnDist(r.Una, r.PSN) > psnDist(r.Una, r.Max)) {
		q.rewind()
	}
	if r.FailStatus != Success && r.Tail == r.FailPos {
		q.failTail(r.FailStatus, h)
		return
	}
	q.checkDrained(h)
}

// checkDrained notes that a queue pair in SQD has nothing in flight any more.
func (q *QP) checkDrained(h Host) {
	if q.state != SQD || q.req.Drained || q.req.Tail != q.req.Started {
		return
	}
	q.req.Drained = true
	if q.attr.SQDAsyncNotify {
		h.Event(EventSQDrained)
	}
}

// failHere notes that the request at Pos cannot be sent. The requests before it go on
// to their own end first.
func (q *QP) failHere(st Status, h Host) {
	r := &q.req
	r.FailPos, r.FailStatus = r.Pos, st
	r.Repairing, r.NumGaps = false, 0
	q.count.SendErrors++
	if r.Pos == r.Started {
		q.begin(packetsOf(r.W.Length, q.attr.MTU))
	}
	q.settle(h)
}

// failTail ends the request at Tail in error, and with it the send queue.
func (q *QP) failTail(st Status, h Host) {
	w := &h.Scratch().Done
	if _, ok := q.tail(w, h); ok {
		q.finish(w, st, h)
	}
	if q.conf.Type == RC {
		q.enterError(h)
		return
	}
	q.state = SQE
	q.stopRequester()
	q.flushSends(h)
}

// stopRequester forgets everything in flight.
func (q *QP) stopRequester() {
	r := &q.req
	r.Pos, r.Started = r.Tail, r.Tail
	r.TailPSN, r.Una, r.Max, r.Arrived = r.PSN, r.PSN, r.PSN, r.PSN
	r.Off, r.RDOut, r.Unasked = 0, 0, 0
	r.Loaded, r.Blocked, r.Retrying = false, false, false
	r.Repairing, r.NumGaps = false, 0
	r.unsee()
	r.FailStatus = Success
	r.RetransAt, r.RNRAt, r.ProbeAt = 0, 0, 0
	r.Probing, r.Probes = false, 0
	q.cc.SampleAt, q.cc.Cut, q.cc.Held, q.cc.Seen = 0, false, false, r.Una
}

// enterError moves the queue pair to the state Error and flushes both queues.
func (q *QP) enterError(h Host) {
	if q.state == Error {
		return
	}
	q.state = Error
	q.stopRequester()
	rs := &q.resp
	rs.Pending, rs.AckDue, rs.NakDue, rs.Closing = 0, false, false, false
	rs.Kind = 0
	if rs.HaveRecv {
		q.finishRecv(WRFlushErr, h)
	}
	more := q.flushSends(h)
	more = q.flushRecvs(h) || more
	q.req.Kick = more
	if q.conf.SRQ {
		h.Event(EventLastWQE)
	}
}

// Flush completes with WRFlushErr what has been posted to a queue pair in the state
// Error, and sends posted in SQE.
func (q *QP) Flush(now Time, h Host) {
	if q.state == Error || q.state == SQE {
		more := q.flushSends(h)
		q.req.Kick = q.flushRecvs(h) || more
	}
}

// flushBatch bounds one round of flushing, so that an application that posts much, or
// without end, cannot hold the engine up. RunPending tells that there is more.
const flushBatch = 1 << 6

func (q *QP) flushSends(h Host) (more bool) {
	w := &h.Scratch().Done
	r := &q.req
	for range flushBatch {
		if !h.FetchSend(r.Tail, w) {
			return false
		}
		q.finish(w, WRFlushErr, h)
		r.Pos, r.Started = r.Tail, r.Tail
	}
	return true
}

func (q *QP) flushRecvs(h Host) (more bool) {
	if q.state != Error || q.conf.SRQ {
		return false
	}
	for range flushBatch {
		if !h.TakeRecv(&q.resp.R) {
			return false
		}
		q.resp.HaveRecv = true
		q.finishRecv(WRFlushErr, h)
	}
	return true
}
