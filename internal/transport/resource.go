package transport

// Responder resources: what the responder remembers of the newest READs and atomics,
// to answer them in order and to answer them again (IBA 9.7.5.1.5, 9.7.7).

// MaxResources is the largest MaxDestRDAtomic of a queue pair.
const MaxResources = 128

// resource is one READ or atomic. They form a ring of MaxDestRDAtomic entries, in the
// order of their requests.
type resource struct {
	Value  uint64 // atomics: the former value; READs: the address
	PSN    uint32 // of the first response packet
	End    uint32 // READs: the byte to stop at
	RKey   uint32
	Length uint32
	Off    uint32 // READs: the next byte to send
	Kind   Kind   // zero: unused
	Due    due
	Again  bool // answered before; Due because of a duplicate request
}

// due says how far a resource's response has got.
type due uint8

const (
	dueNo due = iota
	dueNew
	dueStarted
)

// setResources makes room for n resources and forgets what was there, if that is another
// number.
func (q *QP) setResources(n uint8) {
	if n = min(n, MaxResources); n == q.attr.MaxDestRDAtomic {
		return
	}
	q.attr.MaxDestRDAtomic = n
	rs := &q.resp
	rs.Pending, rs.Next, rs.Head = 0, 0, 0
	rs.Res = [MaxResources]resource{}
}

// receiveRD takes a READ, atomic or flush request that is the next in sequence.
func (q *QP) receiveRD(b *Burst, h Host) (taken bool) {
	rs := &q.resp
	i := rs.Head
	if q.attr.MaxDestRDAtomic == 0 || rs.Res[i].Due != dueNo && !rs.Res[i].Again {
		q.refuse(faultRequest, b.PSN, h) // more than the peer was told we can hold
		return true
	}
	res := resource{Value: b.VA, PSN: b.PSN, RKey: b.RKey, Length: b.Length, End: b.Length, Kind: b.Kind}
	if f := q.execute(b, &res, h); f == faultLater {
		return false
	} else if f != faultNone {
		q.refuse(f, b.PSN, h)
		return true
	}
	rs.MSN = (rs.MSN + 1) & psnMask
	rs.PSN = psnAdd(b.PSN, res.packets(q.attr.MTU))
	if b.Kind != KindReadReq || psnDist(rs.AckPSN, rs.PSN) > psnHalf/2 {
		rs.AckPSN = rs.PSN
	}
	// The response acknowledges what came before.
	rs.AckDue = false
	if rs.Res[i].Due != dueNo {
		q.responded(&rs.Res[i]) // the peer has gone on: it no longer waits for this one
	}
	rs.Res[i] = res
	rs.Head = (i + 1) % q.attr.MaxDestRDAtomic
	q.respondSoon(i, h)
	return true
}

// execute checks an RD request and carries it out, as far as that is not the sending
// of READ responses.
func (q *QP) execute(b *Burst, res *resource, h Host) fault {
	var need Access
	switch b.Kind {
	case KindReadReq:
		need = AccessRemoteRead
	case KindCmpSwap, KindFetchAdd:
		need = AccessRemoteAtomic
	case KindAtomicWrite:
		need = AccessRemoteWrite
	case KindFlush:
		need = AccessFlushGlobal | AccessFlushPersist
	default:
		return faultRequest
	}
	if q.attr.Access&need == 0 || b.size() != 0 || b.Length > MaxMessage && !flushesRegion(b) {
		return faultRequest
	}
	switch b.Kind {
	case KindReadReq:
		if b.Length == 0 {
			return faultNone
		}
		return remoteFault(h.CheckRemote(b.RKey, b.VA, b.Length, need))
	case KindFlush:
		return q.checkFlush(b, h)
	}
	if b.VA&7 != 0 {
		return faultRequest
	}
	orig, st := h.Atomic(b.Kind, b.RKey, b.VA, b.Compare, b.Swap)
	res.Value = orig
	return remoteFault(st)
}

// checkFlush checks that the queue pair and the region allow the kinds of flush that the
// request names (IBA A19.4.4). What was written is visible to everybody at once, so that
// there is nothing to carry out.
func (q *QP) checkFlush(b *Burst, h Host) fault {
	const global, persistent = 1, 2 // placement, in the FETH
	need := Access(0)
	if b.Imm&global != 0 {
		need |= AccessFlushGlobal
	}
	if b.Imm&persistent != 0 {
		need |= AccessFlushPersist
	}
	if need&^q.attr.Access != 0 {
		return faultRequest
	}
	if flushesRegion(b) {
		return remoteFault(h.CheckKey(b.RKey, need))
	}
	return remoteFault(h.CheckRemote(b.RKey, b.VA, b.Length, need))
}

// flushesRegion reports whether b flushes all of a region, whatever the range in its RETH
// says (IBA A19.4.1.2).
func flushesRegion(b *Burst) bool {
	const wholeRegion = 1 // selectivity, in the FETH
	return b.Kind == KindFlush && b.Imm>>4&3 == wholeRegion
}

// packets is how many packets, and PSNs, the response takes.
func (r *resource) packets(mtu uint32) uint32 {
	if r.Kind != KindReadReq {
		return 1
	}
	return packetsOf(r.Length, mtu)
}

// respondSoon marks resource i as having a response to send. Without others before it,
// that of an atomic leaves at once.
func (q *QP) respondSoon(i uint8, h Host) {
	rs := &q.resp
	res := &rs.Res[i]
	if rs.Pending == 0 && (res.Kind == KindCmpSwap || res.Kind == KindFetchAdd) {
		q.answer(KindAtomicResp, res.PSN, AckUnlimited, res.Value, rs.MSN, h)
		return
	}
	if res.Due == dueNo {
		if rs.Pending == 0 || q.age(i) > q.age(rs.Next) {
			rs.Next = i
		}
		rs.Pending++
	}
	res.Due = dueNew
}

// age is how many resources are newer than i, or were used before it in this round.
func (q *QP) age(i uint8) uint8 {
	n := q.attr.MaxDestRDAtomic
	return (q.resp.Head + n - 1 - i) % n
}

// duplicate answers a request that has been carried out already: SENDs and WRITEs are
// acknowledged again, READs are read again, atomics get the answer they got before.
func (q *QP) duplicate(now Time, b *Burst, h Host) {
	rs := &q.resp
	q.count.Duplicates++
	if b.Kind.base() != 0 {
		q.ack(q.ackableFrom(b.PSN), h)
		return
	}
	for i := range q.attr.MaxDestRDAtomic {
		res := &rs.Res[i]
		at := psnDist(res.PSN, b.PSN)
		if res.Kind != b.Kind || at >= res.packets(q.attr.MTU) || res.RKey != b.RKey {
			continue
		}
		off := at * q.attr.MTU
		if res.Kind == KindReadReq && (b.VA != res.Value+uint64(off) || b.Length > res.Length-off) {
			continue
		}
		// A part of a READ may be asked for again. If the rest is still to be sent,
		// or was asked for just before, it makes one response with that.
		end := off + b.Length
		if res.Due == dueNo {
			res.Again = true
			res.Off, res.End = off, end
		} else {
			res.Off, res.End = min(res.Off, off), max(res.End, end)
		}
		if b.Kind == KindReadReq && q.unacknowledged() {
			q.pace.slow(now) // it could not take what it asked for
		}
		q.respondSoon(i, h)
		return
	}
	q.count.Dropped++ // too old for us to remember
}

// ackableFrom is the PSN of the ACK for a duplicate at psn: the newest request that was
// carried out, but never a READ or atomic, nor anything behind one. The requester may
// still wait for its response, and rxe takes an ACK with its PSN for it: then the program
// sees an atomic that succeeded and brought nothing.
func (q *QP) ackableFrom(psn uint32) uint32 {
	rs := &q.resp
	n := psnDist(psn, rs.AckPSN)
	for i := range q.attr.MaxDestRDAtomic {
		if res := &rs.Res[i]; res.Kind != 0 {
			n = min(n, psnDist(psn, res.PSN))
		}
	}
	return psnAdd(psn, n+psnMask)
}

// RespondPending reports whether Respond has something to do.
func (q *QP) RespondPending() bool {
	return q.resp.Pending > 0 && !q.pace.Waiting || q.resp.Stalled
}

// ResponsePSN is the first packet of the READ response that Respond sends next: what a Host
// that was asked for its data, and answered Later, may know the READ by.
func (q *QP) ResponsePSN() uint32 {
	res := &q.resp.Res[q.resp.Next]
	return psnAdd(res.PSN, res.Off/q.attr.MTU)
}

// Respond sends READ responses, about budget bytes at most, and reports whether there
// is more to do at once. It also takes up requests whose memory was not at hand.
func (q *QP) Respond(now Time, budget int, h Host) (more bool) {
	rs := &q.resp
	if rs.Stalled {
		q.unstall(now, h)
	}
	sc := h.Scratch()
	for budget > 0 && rs.Pending > 0 {
		if !q.listening(h) {
			return false
		}
		if q.pace.hold(now) {
			return false
		}
		res := &rs.Res[rs.Next]
		if res.Kind == KindCmpSwap || res.Kind == KindFetchAdd {
			// The link queues this response; a READ response sent now
			// would overtake it.
			v, psn := res.Value, res.PSN
			q.responded(res)
			q.answer(KindAtomicResp, psn, AckUnlimited, v, rs.MSN, h)
			if rs.Pending == 0 {
				q.owed(h)
			}
			return rs.Pending > 0
		}
		n := q.readBurst(now, res, budget, h)
		if n == 0 {
			return false
		}
		budget -= n
		if rs.Pending == 0 {
			q.owed(h)
		}
		if sc.Held {
			return false
		}
	}
	return rs.Pending > 0
}

// responded notes that all of res has been sent and finds the next one.
func (q *QP) responded(res *resource) {
	rs := &q.resp
	res.Due = dueNo
	rs.Pending--
	for range q.attr.MaxDestRDAtomic {
		if rs.Pending == 0 || rs.Res[rs.Next].Due != dueNo {
			return
		}
		rs.Next = (rs.Next + 1) % q.attr.MaxDestRDAtomic
	}
}

// readBurst sends the next burst of a READ response, or the empty response to an
// atomic write or flush. It returns its cost, zero if the queue pair died of it.
func (q *QP) readBurst(now Time, res *resource, budget int, h Host) int {
	mtu := q.attr.MTU
	left := uint32(0)
	if res.Kind == KindReadReq {
		left = res.End - res.Off
	}
	n := min(left, q.req.Burst)
	if budget < int(n) {
		n = max(uint32(budget), mtu)
	}
	if n >= left {
		n = left
	} else {
		n -= n % mtu
	}
	psn := psnAdd(res.PSN, res.Off/mtu)
	sc := h.Scratch()
	sc.OutData.Reset()
	if n > 0 {
		if st := h.ReadRemote(res.RKey, res.Value+uint64(res.Off), n, &sc.OutData); st == Later {
			return 0
		} else if st != Success {
			// The region went away under the response.
			q.resp.Pending, q.resp.AckDue = 0, false
			q.refuse(remoteFault(st), psn, h)
			return 0
		}
	}
	b := &sc.Out
	q.address(b, KindReadResp)
	b.First = res.Due == dueNew
	b.Last = n == left
	b.PSN, b.Packets = psn, packetsOf(n, mtu)
	b.Syndrome, b.MSN = AckUnlimited, q.resp.MSN
	b.Data = &sc.OutData
	res.Off += n
	res.Due = dueStarted
	if b.Last {
		q.responded(res)
	}
	q.pace.spend(now, b)
	q.transmit(b, h)
	if q.state == Error || q.state == Reset {
		return 0
	}
	return max(int(n), minCost)
}
