package transport

import "vrdma/internal/ib"

// What the requester makes of the responder's answers, and of their absence
// (IBA 9.7.6, 9.7.7, 9.9.2).

// receiveResponse takes an ACK, a NAK, or the response to a READ or atomic.
func (q *QP) receiveResponse(now ib.Time, b *Burst, h Host) (taken bool) {
	r := &q.req
	if q.state != ib.StateRTS && q.state != ib.StateSQD || ib.PSNDist(r.Una, b.PSN) >= ib.PSNDist(r.Una, r.Max) {
		// Stale, or never asked for. A READ response may begin before Una and
		// end behind it.
		if b.Kind == KindReadResp && (q.state == ib.StateRTS || q.state == ib.StateSQD) {
			return q.readResponse(now, b, h)
		}
		q.count.Dropped++
		return true
	}
	switch b.Kind {
	case KindReadResp:
		return q.readResponse(now, b, h)
	case KindAtomicResp:
		return q.atomicResponse(now, b, h)
	case KindAck:
		q.acknowledge(now, b, h)
	default:
		q.count.Dropped++
	}
	return true
}

func (q *QP) acknowledge(now ib.Time, b *Burst, h Host) {
	switch b.Syndrome & synTypeMask {
	case synAck:
		if q.advance(ib.PSNAdd(b.PSN, 1), now, h) {
			q.implicitNak(now, h)
		}
	case synRNR:
		q.rnrNak(now, b, h)
	case synNak:
		if b.Syndrome == nakRepair {
			if q.repairLater(now, b.PSN, b.MSN) {
				q.count.Repairs++
			}
			return
		}
		q.nak(now, b, h)
	default:
		q.count.Dropped++
	}
}

// nak handles the NAK for packet b.PSN, which acknowledges all packets before it.
func (q *QP) nak(now ib.Time, b *Burst, h Host) {
	if q.advance(b.PSN, now, h) {
		q.implicitNak(now, h)
		return
	}
	if q.state != ib.StateRTS && q.state != ib.StateSQD {
		return
	}
	st := RemOpErr
	switch b.Syndrome {
	case NakSequence:
		q.count.RcvdSequenceErr++
		// Not when this NAK has been acted upon: it was duplicated on the way.
		if q.req.RNRAt == 0 && q.req.PSN != q.req.Una && !q.wentBack(now, q.cc.SRTT/2) {
			if q.repairLater(now, b.PSN, b.MSN) {
				q.count.Repairs++
				q.req.Retrying, q.cc.BackAt = true, now
			} else {
				q.retry(now, q.path.Own, h)
			}
		}
		return
	case NakInvalid:
		st = RemInvReqErr
	case NakAccess:
		st = RemAccessErr
	case NakInvalidRD:
		st = RemInvRDReqErr
	}
	q.failTail(st, h)
}

// rnrNak waits as long as the responder wants and sends again from b.PSN on.
func (q *QP) rnrNak(now ib.Time, b *Burst, h Host) {
	q.count.RcvdRNR++
	if q.advance(b.PSN, now, h) {
		q.implicitNak(now, h)
		return
	}
	r := &q.req
	if q.state != ib.StateRTS && q.state != ib.StateSQD || r.RNRAt != 0 {
		return
	}
	if r.RNRRetry == 0 {
		q.count.RNRExceeded++
		q.failTail(RNRRetryExcErr, h)
		return
	}
	if r.RNRRetry != 7 {
		r.RNRRetry--
	}
	r.Retry = q.attr.RetryCount // the packet has arrived: what was lost before it counts no more
	r.RNRAt = now + RNRDelay(b.Syndrome)
	r.RetransAt, r.ProbeAt, q.cc.SampleAt = 0, 0, 0
	q.rewind()
}

// readResponse takes data of the READ at Tail.
func (q *QP) readResponse(now ib.Time, b *Burst, h Host) (taken bool) {
	r := &q.req
	if ib.PSNDist(r.Una, b.PSN) < ib.PSNDist(r.Una, r.Max) {
		if q.advance(b.PSN, now, h) {
			kept, later := q.keepRead(now, b, h)
			if later {
				return false
			}
			if !kept {
				q.implicitNak(now, h)
			}
			return true
		}
		if q.state != ib.StateRTS && q.state != ib.StateSQD {
			return true
		}
	}
	w := &h.Scratch().Done
	if r.Tail == r.Started || !h.FetchSend(r.Tail, w) || !w.Op.isRD() || w.Op == WRCmpSwap || w.Op == WRFetchAdd {
		q.count.Dropped++
		return true
	}
	mtu := q.attr.MTU
	packets := uint32(1)
	length := uint32(0)
	if w.Op == WRRead {
		packets, length = packetsOf(w.Length, mtu), w.Length
	}
	start := ib.PSNDist(r.TailPSN, b.PSN)
	end := start + b.Packets
	una := ib.PSNDist(r.TailPSN, r.Una)
	if start >= packets || end > packets || start > una || end <= una {
		q.count.Dropped++ // old, or not of this request
		return true
	}
	off := start * mtu
	n := b.size()
	final := end == packets
	if packets > r.Chunk {
		final = final || end%r.Chunk == 0
		if start/r.Chunk != (end-1)/r.Chunk {
			q.count.Dropped++ // an answer to none of our requests
			return true
		}
	}
	// Where parts of pieces were asked for, the end of a response may be anywhere.
	if want := min(length-off, b.Packets*mtu); n != want || b.Last != final && !(b.Last && r.Holed) {
		q.failTail(BadRespErr, h)
		return true
	}
	if n > 0 {
		if st := h.ScatterSend(w, off, b.Data); st == Later {
			return false
		} else if st != Success {
			q.failTail(st, h)
			return true
		}
	}
	if r.NumSeen > 0 {
		r.forget(r.Una, ib.PSNAdd(r.TailPSN, end))
	}
	r.Una = ib.PSNAdd(r.TailPSN, end)
	if end == packets {
		r.TailPSN = r.Una
		q.finish(w, Success, h)
	} else if final {
		q.pieceDone(end, packets)
	}
	if r.NumSeen > 0 {
		q.absorb(now, h)
	}
	q.progress(now, h)
	return true
}

// atomicResponse takes the former value for the atomic at Tail.
func (q *QP) atomicResponse(now ib.Time, b *Burst, h Host) (taken bool) {
	if q.advance(b.PSN, now, h) {
		q.implicitNak(now, h)
		return true
	}
	r := &q.req
	sc := h.Scratch()
	w := &sc.Done
	if q.state != ib.StateRTS && q.state != ib.StateSQD || r.Una != b.PSN || r.Tail == r.Started || !h.FetchSend(r.Tail, w) {
		return true
	}
	if w.Op != WRCmpSwap && w.Op != WRFetchAdd || b.size() != 0 {
		q.count.Dropped++
		return true
	}
	for i := range 8 {
		sc.Buf[i] = byte(b.Orig >> (8 * i))
	}
	sc.InData.Reset()
	sc.InData.Add(sc.Buf[:8])
	if st := h.ScatterSend(w, 0, &sc.InData); st == Later {
		return false
	} else if st != Success {
		q.failTail(st, h)
		return true
	}
	r.Una = ib.PSNAdd(r.Una, 1)
	r.TailPSN = r.Una
	q.finish(w, Success, h)
	q.progress(now, h)
	return true
}

// advance takes it that every packet before to has arrived, and completes what that
// completes. It reports whether a READ or an atomic whose own response is missing
// stands in the way.
func (q *QP) advance(to uint32, now ib.Time, h Host) (missing bool) {
	r := &q.req
	if r.Una == to {
		return false
	}
	w := &h.Scratch().Done
	before := r.Una
	for r.Una != to && r.Tail != r.Started {
		packets, ok := q.tail(w, h)
		if !ok {
			break
		}
		if w.Op.isRD() {
			missing = true
			break
		}
		if have := ib.PSNDist(r.TailPSN, to); have < packets {
			r.Una = to
			break
		}
		r.TailPSN = ib.PSNAdd(r.TailPSN, packets)
		r.Una = r.TailPSN
		q.finish(w, Success, h)
	}
	if r.Una != before {
		q.progress(now, h)
	}
	return missing
}

// progress resets what only counts failures in a row.
func (q *QP) progress(now ib.Time, h Host) {
	r := &q.req
	r.Retry, r.RNRRetry = q.attr.RetryCount, q.attr.RNRRetry
	r.Retrying = false
	if q.path.Remote {
		r.Probing, r.Probes = false, 0
		q.learn(now)
	}
	if r.FailStatus != Success && int32(r.Tail-r.FailPos) > 0 {
		// It could not be sent again, and turns out not to have been lost.
		r.FailStatus = Success
		r.Kick = true
	}
	if r.Blocked {
		r.Kick = true
	}
	q.restartTimer(now)
	q.completeLocal(h)
}

// restartTimer gives the oldest unacknowledged packet its full time.
func (q *QP) restartTimer(now ib.Time) {
	r := &q.req
	r.RetransAt = 0
	if r.Una == r.Max || q.conf.Type != ib.RC {
		r.ProbeAt = 0
		return
	}
	d := AckTimeout(q.attr.Timeout)
	if d != 0 {
		r.RetransAt = now + d
	}
	if q.path.Remote {
		r.ProbeAt = q.probeAt(now, d)
	}
}

// rewind makes the oldest unacknowledged packet the next one to send.
func (q *QP) rewind() {
	r := &q.req
	r.Pos, r.PSN = r.Tail, r.Una
	r.RDOut, r.Unasked, r.NumGaps = 0, 0, 0
	r.Arrived = r.Una
	r.unsee()
	r.Loaded, r.Repairing = false, false
	r.Kick = true
}

// implicitNak handles a response that shows that an earlier one was lost.
func (q *QP) implicitNak(now ib.Time, h Host) {
	if q.req.Retrying && (!q.path.Own || q.cc.SRTT == 0) || q.req.RNRAt != 0 || q.wentBack(now, 2*q.cc.SRTT) {
		return
	}
	q.count.ImplicitNaks++
	q.retry(now, q.path.Own, h)
}

// timeout handles the local ACK timeout.
func (q *QP) timeout(now ib.Time, h Host) {
	q.count.Timeouts++
	q.cutTimeout()
	q.retry(now, false, h)
}

// retry goes back to the oldest unacknowledged packet, if it may once more. It is free when
// the peer is known to be there and not to ask without need.
func (q *QP) retry(now ib.Time, free bool, h Host) {
	r := &q.req
	if q.state != ib.StateRTS && q.state != ib.StateSQD || r.Una == r.Max {
		r.RetransAt, r.ProbeAt = 0, 0
		return
	}
	if r.Retry == 0 && !free {
		q.count.RetryExceeded++
		q.failTail(RetryExcErr, h)
		return
	}
	if !free {
		r.Retry--
	}
	q.count.Retries++
	r.Retrying, r.Probing = true, false
	q.cc.BackAt, q.cc.SampleAt = now, 0
	q.cutLoss()
	q.rewind()
	q.restartTimer(now)
}
