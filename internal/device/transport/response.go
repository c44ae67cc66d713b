package transport

import "vrdma.dev/vrdma/internal/ib"

// This file handles the responder's answers at the requester (IBA 9.7.6, 9.7.7, 9.9.2).

// receiveResponse processes an ACK, a NAK, or the response to a READ or atomic.
func (r *requester) receiveResponse(c *reqCall, b *Burst) (taken bool) {
	if !c.running() || ib.PSNDist(r.Una, b.PSN) >= ib.PSNDist(r.Una, r.Max) {
		// The response is stale or unsolicited. A READ response may begin before Una and end after it.
		if b.Kind == KindReadResp && c.running() {
			return r.readResponse(c, b)
		}
		c.Count.Dropped++
		return true
	}
	switch b.Kind {
	case KindReadResp:
		return r.readResponse(c, b)
	case KindAtomicResp:
		return r.atomicResponse(c, b)
	case KindAck:
		r.acknowledge(c, b)
	default:
		c.Count.Dropped++
	}
	return true
}

func (r *requester) acknowledge(c *reqCall, b *Burst) {
	switch b.Syndrome & synTypeMask {
	case synAck:
		if r.advance(c, ib.PSNAdd(b.PSN, 1)) {
			r.implicitNak(c)
		}
	case synRNR:
		r.rnrNak(c, b)
	case synNak:
		if b.Syndrome == nakRepair {
			if r.repairSoon(c, b.PSN, b.MSN) {
				c.Count.Repairs++
			}
			return
		}
		r.nak(c, b)
	default:
		c.Count.Dropped++
	}
}

// nak handles the NAK for packet b.PSN, which acknowledges all packets before it.
func (r *requester) nak(c *reqCall, b *Burst) {
	if r.advance(c, b.PSN) {
		r.implicitNak(c)
		return
	}
	if !c.running() {
		return
	}
	st := RemOpErr
	switch b.Syndrome {
	case NakSequence:
		c.Count.RcvdSequenceErr++
		// Ignore a NAK that has already been handled: the network may duplicate packets.
		if r.Loss.RNRAt == 0 && r.PSN != r.Una && !r.Loss.wentBack(c.common, c.now, r.CC.SRTT/2) {
			if r.repairSoon(c, b.PSN, b.MSN) {
				c.Count.Repairs++
				r.Loss.Retrying, r.Loss.BackAt = true, c.now
			} else {
				r.retry(c, c.Path.Own)
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
	r.failTail(c, st)
}

// rnrNak waits for the time in the RNR NAK and then sends again from b.PSN on.
func (r *requester) rnrNak(c *reqCall, b *Burst) {
	c.Count.RcvdRNR++
	if r.Loss.RNRAt != 0 {
		r.Loss.RNRAt = min(r.Loss.RNRAt, c.now+RNRDelay(b.Syndrome)) // the peer has become ready, see Recall
	}
	if r.advance(c, b.PSN) {
		r.implicitNak(c)
		return
	}
	if !c.running() || r.Loss.RNRAt != 0 {
		return
	}
	if !r.Loss.wait(c.common, c.now, b.Syndrome) {
		c.Count.RNRExceeded++
		r.failTail(c, RNRRetryExcErr)
		return
	}
	r.CC.SampleAt = 0
	r.rewind()
}

// readResponse processes data of the READ at Tail.
func (r *requester) readResponse(c *reqCall, b *Burst) (taken bool) {
	if ib.PSNDist(r.Una, b.PSN) < ib.PSNDist(r.Una, r.Max) {
		if r.advance(c, b.PSN) {
			kept, later := r.keepRead(c, b)
			if later {
				return false
			}
			if !kept {
				r.implicitNak(c)
			}
			return true
		}
		if !c.running() {
			return true
		}
	}
	w := &c.sc.Done
	if r.Tail == r.Started || !c.h.FetchSend(r.Tail, w) || !w.Op.isRD() || w.Op == WRCmpSwap || w.Op == WRFetchAdd {
		c.Count.Dropped++
		return true
	}
	mtu := c.Attr.MTU
	packets := uint32(1)
	length := uint32(0)
	if w.Op == WRRead {
		packets, length = packetsOf(w.Length, mtu), w.Length
	}
	start := ib.PSNDist(r.TailPSN, b.PSN)
	end := start + b.Packets
	una := ib.PSNDist(r.TailPSN, r.Una)
	if start >= packets || end > packets || start > una || end <= una {
		c.Count.Dropped++ // old, or for another request
		return true
	}
	off := start * mtu
	n := b.size()
	final := end == packets
	if packets > r.Chunk {
		final = final || end%r.Chunk == 0
		if start/r.Chunk != (end-1)/r.Chunk {
			c.Count.Dropped++ // not a response to any of our requests
			return true
		}
	}
	// If parts of pieces were requested, a response may end anywhere.
	if want := min(length-off, b.Packets*mtu); n != want || b.Last != final && !(b.Last && r.Reads.Asked) {
		r.failTail(c, BadRespErr)
		return true
	}
	if n > 0 {
		if st := c.h.ScatterSend(w, off, b.Data); st == Later {
			return false
		} else if st != Success {
			r.failTail(c, st)
			return true
		}
	}
	if r.Reads.NumSeen > 0 {
		r.Reads.forget(r.Una, ib.PSNAdd(r.TailPSN, end))
	}
	r.Una = ib.PSNAdd(r.TailPSN, end)
	if end == packets {
		r.TailPSN = r.Una
		r.finish(c, w, Success)
	} else if final {
		r.pieceDone(end, packets)
	}
	if r.Reads.NumSeen > 0 {
		r.absorb(c)
	}
	r.progress(c)
	return true
}

// atomicResponse processes the former value for the atomic at Tail.
func (r *requester) atomicResponse(c *reqCall, b *Burst) (taken bool) {
	if r.advance(c, b.PSN) {
		r.implicitNak(c)
		return true
	}
	sc := c.sc
	w := &sc.Done
	if !c.running() || r.Una != b.PSN || r.Tail == r.Started || !c.h.FetchSend(r.Tail, w) {
		return true
	}
	if w.Op != WRCmpSwap && w.Op != WRFetchAdd || b.size() != 0 {
		c.Count.Dropped++
		return true
	}
	for i := range 8 {
		sc.Buf[i] = byte(b.Orig >> (8 * i))
	}
	sc.InData.Reset()
	sc.InData.Add(sc.Buf[:8])
	if st := c.h.ScatterSend(w, 0, &sc.InData); st == Later {
		return false
	} else if st != Success {
		r.failTail(c, st)
		return true
	}
	r.Una = ib.PSNAdd(r.Una, 1)
	r.TailPSN = r.Una
	r.finish(c, w, Success)
	r.progress(c)
	return true
}

// advance records that every packet before to has arrived, and completes the requests that this completes. It
// returns true if a READ or an atomic without its own response prevents that.
func (r *requester) advance(c *reqCall, to uint32) (missing bool) {
	if r.Una == to {
		return false
	}
	w := &c.sc.Done
	before := r.Una
	for r.Una != to && r.Tail != r.Started {
		packets, ok := r.packetsAt(c, r.Tail, w)
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
		r.finish(c, w, Success)
	}
	if r.Una != before {
		r.progress(c)
	}
	return missing
}

// progress resets the counters of consecutive failures.
func (r *requester) progress(c *reqCall) {
	r.Loss.progress(c.common)
	if c.Path.Remote {
		r.CC.learn(c.common, c.now, r.Una)
	}
	if r.FailStatus != Success && int32(r.Tail-r.FailPos) > 0 {
		// The request could not be sent again, but it was not lost.
		r.FailStatus = Success
		r.Kick = true
	}
	if r.Blocked {
		r.Kick = true
	}
	r.restartTimer(c.common, c.now)
	r.completeLocal(c)
}
