package transport

import "vrdma.dev/vrdma/internal/ib"

// This file is the responder's execution of READs, atomics and flushes, and sends their responses.

// receiveRD processes a READ, atomic or flush request that is next in sequence.
func (rs *responder) receiveRD(c *respCall, b *Burst) (taken bool) {
	n := c.Attr.MaxDestRDAtomic
	if rs.Res.full(n) {
		rs.refuse(c, faultRequest, b.PSN) // more outstanding requests than negotiated
		return true
	}
	e := resource{Value: b.VA, PSN: b.PSN, RKey: b.RKey, Length: b.Length, End: b.Length, Kind: b.Kind}
	if f := rs.execute(c, b, &e); f == faultLater {
		return false
	} else if f != faultNone {
		rs.refuse(c, f, b.PSN)
		return true
	}
	rs.MSN = (rs.MSN + 1) & ib.PSNMask
	c.countMessage(&c.Count.RcvdMessages, b)
	rs.PSN = ib.PSNAdd(b.PSN, e.packets(c.Attr.MTU))
	if b.Kind != KindReadReq || ib.PSNDist(rs.AckPSN, rs.PSN) > ib.PSNHalf/2 {
		rs.AckPSN = rs.PSN
	}
	// The response also acknowledges earlier requests.
	rs.Delayed.Ack = false
	rs.respondSoon(c, rs.Res.put(&e, n))
	return true
}

// execute checks an RD request and executes it, except for sending READ responses.
func (rs *responder) execute(c *respCall, b *Burst, e *resource) fault {
	var need ib.Access
	switch b.Kind {
	case KindReadReq:
		need = ib.AccessRemoteRead
	case KindCmpSwap, KindFetchAdd:
		need = ib.AccessRemoteAtomic
	case KindAtomicWrite:
		need = ib.AccessRemoteWrite
	case KindFlush:
		need = ib.AccessFlushGlobal | ib.AccessFlushPersist
	default:
		return faultRequest
	}
	if c.Attr.Denied != 0 && c.denies(b.Kind) {
		return faultAccess
	}
	if c.Attr.Access&need == 0 || b.size() != 0 || b.Length > MaxMessage && !flushesRegion(b) {
		return faultRequest
	}
	switch b.Kind {
	case KindReadReq:
		if b.Length == 0 {
			return faultNone
		}
		return remoteFault(c.h.CheckRemote(b.RKey, b.VA, b.Length, need))
	case KindFlush:
		return rs.checkFlush(c, b)
	}
	if b.VA&7 != 0 {
		return faultRequest
	}
	orig, st := c.h.Atomic(b.Kind, b.RKey, b.VA, b.Compare, b.Swap)
	e.Value = orig
	return remoteFault(st)
}

// checkFlush checks that the queue pair and the region allow the flush types of the request (IBA A19.4.4).
// Written data is visible at once, so there is nothing to execute.
func (rs *responder) checkFlush(c *respCall, b *Burst) fault {
	const global, persistent = 1, 2 // placement, in the FETH
	need := ib.Access(0)
	if b.Imm&global != 0 {
		need |= ib.AccessFlushGlobal
	}
	if b.Imm&persistent != 0 {
		need |= ib.AccessFlushPersist
	}
	if need&^c.Attr.Access != 0 {
		return faultRequest
	}
	if flushesRegion(b) {
		return remoteFault(c.h.CheckKey(b.RKey, need))
	}
	return remoteFault(c.h.CheckRemote(b.RKey, b.VA, b.Length, need))
}

// flushesRegion reports whether b flushes a whole region, whatever the range in its RETH (IBA A19.4.1.2).
func flushesRegion(b *Burst) bool {
	const wholeRegion = 1 // selectivity, in the FETH
	return b.Kind == KindFlush && b.Imm>>4&3 == wholeRegion
}

// respondSoon queues the response of resource i. An atomic response leaves at once if no other response is
// pending.
func (rs *responder) respondSoon(c *respCall, i uint8) {
	e := &rs.Res.Ring[i]
	if rs.Res.Pending == 0 && e.atomic() {
		rs.answer(c, KindAtomicResp, e.PSN, AckUnlimited, e.Value, rs.MSN)
		return
	}
	rs.Res.queue(i, c.Attr.MaxDestRDAtomic)
}

// duplicate answers a request that has already been executed: it acknowledges SENDs and WRITEs again, reads
// the data of READs again, and repeats the response of atomics.
func (rs *responder) duplicate(c *respCall, b *Burst) {
	c.Count.Duplicates++
	n := c.Attr.MaxDestRDAtomic
	if b.Kind.base() != 0 {
		rs.ack(c, rs.ackableFrom(b.PSN, n))
		return
	}
	i, off, ok := rs.Res.find(b, c.Attr.MTU, n)
	if !ok {
		c.Count.Dropped++ // the resource has been reused
		return
	}
	rs.Res.Ring[i].repeat(off, off+b.Length)
	if b.Kind == KindReadReq && c.unacknowledged() {
		c.Pace.slow(c.now) // the peer could not receive the data it requested
	}
	rs.respondSoon(c, i)
}

// ackableFrom returns the PSN of the ACK for a duplicate at psn: the newest executed request, but never a
// READ or atomic, nor anything after one. The requester may still wait for that response, and rxe accepts
// an ACK with its PSN in place of the response: the program would see an atomic without a result.
func (rs *responder) ackableFrom(psn uint32, n uint8) uint32 {
	return ib.PSNAdd(psn, rs.Res.before(psn, ib.PSNDist(psn, rs.AckPSN), n)+ib.PSNMask)
}

// pending reports whether respond has work.
func (rs *responder) pending(c *common) bool {
	return rs.Res.Pending > 0 && !c.Pace.Waiting || rs.Stalled
}

// respond sends READ responses, up to about budget bytes, and reports whether it can send more at once. It
// also continues requests whose memory was not available.
func (rs *responder) respond(c *respCall, budget int) (more bool) {
	if rs.Stalled {
		rs.unstall(c)
	}
	for budget > 0 && rs.Res.Pending > 0 {
		if !rs.listening(c) || c.Pace.hold(c.now) {
			return false
		}
		e := &rs.Res.Ring[rs.Res.Next]
		if e.atomic() {
			// The link queues this response; a READ response sent now would overtake it.
			rs.Res.done(e, c.Attr.MaxDestRDAtomic)
			rs.answer(c, KindAtomicResp, e.PSN, AckUnlimited, e.Value, rs.MSN)
			if rs.Res.Pending == 0 {
				rs.sendDelayed(c)
			}
			return rs.Res.Pending > 0
		}
		n := rs.readBurst(c, e, budget)
		if n == 0 {
			return false
		}
		budget -= n
		if rs.Res.Pending == 0 {
			rs.sendDelayed(c)
		}
		if c.sc.Held {
			return false
		}
	}
	return rs.Res.Pending > 0
}

// readBurst sends the next burst of a READ response, or the empty response to an atomic write or flush. It
// returns its cost, or zero if the queue pair failed.
func (rs *responder) readBurst(c *respCall, e *resource, budget int) int {
	mtu := c.Attr.MTU
	left := uint32(0)
	if e.Kind == KindReadReq {
		left = e.End - e.Off
	}
	n := min(left, c.Burst)
	if budget < int(n) {
		n = max(uint32(budget), mtu)
	}
	if n >= left {
		n = left
	} else {
		n -= n % mtu
	}
	psn := ib.PSNAdd(e.PSN, e.Off/mtu)
	sc := c.sc
	sc.OutData.Reset()
	if c.Attr.Denied != 0 && c.denies(e.Kind) {
		// Deny has forbidden the operation since the request.
		rs.Res.Pending, rs.Delayed.Ack = 0, false
		rs.refuse(c, faultAccess, psn)
		return 0
	}
	if n > 0 {
		if st := c.h.ReadRemote(e.RKey, e.Value+uint64(e.Off), n, &sc.OutData); st == Later {
			return 0
		} else if st != Success {
			// The region has been deregistered since the request.
			rs.Res.Pending, rs.Delayed.Ack = 0, false
			rs.refuse(c, remoteFault(st), psn)
			return 0
		}
	}
	b := &sc.Out
	c.address(b, KindReadResp)
	b.First = e.Due == dueNew
	b.Last = n == left
	b.PSN, b.Packets = psn, packetsOf(n, mtu)
	b.Syndrome, b.MSN = AckUnlimited, rs.MSN
	b.Data = &sc.OutData
	e.Off += n
	e.Due = dueStarted
	if b.Last {
		rs.Res.done(e, c.Attr.MaxDestRDAtomic)
	}
	c.Pace.spend(c.now, b)
	c.transmit(b)
	if c.State == ib.StateError || c.State == ib.StateReset {
		return 0
	}
	return max(int(n), minCost)
}
