package transport

import "vrdma/internal/ib"

// READ responses from our own hosts that arrive out of order. Their data goes where it
// belongs at once, and what is missing is asked for again, by READ requests for just that:
//
//	arrived  … 40 41 __ 43 44 __ 46        READ 42, one packet    READ 45, one packet
//	                 └─ Una  └──── Seen ──┘
//
// To the responder that is a request it has answered before, a part of which is wanted once
// more. A request is still completed only when all of its data and everything before it is
// there. If something else than READs lies between, or if nothing is heard, the requester
// goes back as ever and forgets what it has seen.

// seenMost is how far ahead of Una data is placed, in packets.
const seenMost = 2048

// seen is READ data that has arrived ahead of Una, by PSN.
type seen [seenMost / 64]uint64

func (s *seen) has(psn uint32) bool { return s[psn%seenMost/64]&(1<<(psn%64)) != 0 }
func (s *seen) set(psn uint32)      { s[psn%seenMost/64] |= 1 << (psn % 64) }
func (s *seen) drop(psn uint32)     { s[psn%seenMost/64] &^= 1 << (psn % 64) }

// unsee forgets all of it.
func (r *requester) unsee() {
	if r.NumSeen != 0 {
		r.Seen, r.NumSeen = seen{}, 0
	}
	r.NumHoles = 0
}

// forget takes the packets from one PSN up to another out of what has been seen.
func (r *requester) forget(from, to uint32) {
	for ; from != to; from = ib.PSNAdd(from, 1) {
		if r.Seen.has(from) {
			r.Seen.drop(from)
			r.NumSeen--
		}
	}
}

// findRead brings the READ that has the packet psn into w. It reports where that one
// begins and how many packets it has; false if there are other requests before it, or none.
func (q *QP) findRead(psn uint32, w *SendWQE, h Host) (first, packets uint32, ok bool) {
	r := &q.req
	first = r.TailPSN
	for pos := r.Tail; int32(r.Started-pos) > 0; pos++ {
		packets, ok = q.packetsAt(pos, w, h)
		if !ok || w.Op != WRRead {
			return 0, 0, false
		}
		if ib.PSNDist(first, psn) < packets {
			ok = h.FetchSend(pos, w) && w.Op == WRRead && packetsOf(w.Length, q.attr.MTU) == packets
			return first, packets, ok
		}
		first = ib.PSNAdd(first, packets)
	}
	return 0, 0, false
}

// keepRead puts the data of b, which is ahead of what is missing, into place. It reports
// whether that could be done, and whether it can be done later.
func (q *QP) keepRead(now ib.Time, b *Burst, h Host) (kept, later bool) {
	r := &q.req
	ahead := ib.PSNDist(r.Una, b.PSN) + b.Packets
	if !q.path.Own || ahead > seenMost || ahead > ib.PSNDist(r.Una, r.Max) {
		return false, false
	}
	w := &h.Scratch().Done
	first, packets, ok := q.findRead(b.PSN, w, h)
	if !ok {
		return false, false
	}
	start := ib.PSNDist(first, b.PSN)
	end := start + b.Packets
	if end > packets || packets > r.Chunk && start/r.Chunk != (end-1)/r.Chunk ||
		b.size() != min(w.Length-start*q.attr.MTU, b.Packets*q.attr.MTU) {
		return false, false
	}
	if b.size() > 0 {
		if st := h.ScatterSend(w, start*q.attr.MTU, b.Data); st != Success {
			return false, st == Later
		}
	}
	if r.NumSeen == 0 {
		r.SeenEnd, r.HoleAt = r.Una, now
	}
	for i := range b.Packets {
		if psn := ib.PSNAdd(b.PSN, i); !r.Seen.has(psn) {
			r.Seen.set(psn)
			r.NumSeen++
		}
	}
	q.cc.arrived(now, ib.PSNAdd(b.PSN, b.Packets))
	if gone := ib.PSNDist(r.SeenEnd, b.PSN); gone < ib.PSNHalf {
		if gone > 0 {
			q.missed(now, r.SeenEnd, b.PSN)
		}
		r.SeenEnd = ib.PSNAdd(b.PSN, b.Packets)
	}
	if now-r.HoleAt >= q.readPatience() {
		q.askHoles(now, r.SeenEnd)
	}
	if r.Blocked {
		r.Kick = true
	}
	return true, false
}

// readPatience is how long what was asked for again may take.
func (q *QP) readPatience() ib.Time {
	return max(2*q.cc.SRTT, q.cc.SRTT+probeVars*q.cc.Var, nakAgainOwn)
}

// missed notes that the packets from one PSN up to another have not come.
func (q *QP) missed(now ib.Time, from, to uint32) {
	q.count.ImplicitNaks++
	q.cc.Unsure = q.cc.SRTT != 0
	if ib.PSNDist(from, to) >= lossRun {
		q.cutLoss()
	} else {
		q.cutRepaired()
	}
	q.askHole(from, to)
}

// askHole has the packets from one PSN up to another asked for again.
func (q *QP) askHole(from, to uint32) {
	if r := &q.req; int(r.NumHoles) < len(r.Holes) {
		r.Holes[r.NumHoles] = gap{from, to}
		r.NumHoles++
		r.Kick = true
	}
}

// askHoles has everything asked for again that has not come before end, as far as there is
// room to note it.
func (q *QP) askHoles(now ib.Time, end uint32) {
	r := &q.req
	r.NumHoles, r.HoleAt = 0, now
	for psn := r.Una; psn != end && int(r.NumHoles) < len(r.Holes); {
		for psn != end && r.Seen.has(psn) {
			psn = ib.PSNAdd(psn, 1)
		}
		from := psn
		for psn != end && !r.Seen.has(psn) {
			psn = ib.PSNAdd(psn, 1)
		}
		if from != psn {
			q.askHole(from, psn)
		}
	}
}

// probeReads asks for what is known to be missing when nothing is heard; what may just be
// late would be too much. It reports false if there is no such thing, or if it has been
// asked for in vain: then going back is better.
func (q *QP) probeReads(now ib.Time) bool {
	r := &q.req
	if !q.path.Own || r.NumSeen == 0 || r.Probes > 3 {
		return false
	}
	q.askHoles(now, r.SeenEnd)
	return true
}

// sendHole asks for the first of the holes, as far as one request of old goes.
func (q *QP) sendHole(now ib.Time, h Host) int {
	r := &q.req
	g := &r.Holes[0]
	if !q.ahead(g.From) {
		g.From = r.Una
	}
	n := ib.PSNDist(g.From, g.To)
	w := &h.Scratch().Done
	first, packets, ok := uint32(0), uint32(0), false
	if n-1 < seenMost && q.ahead(g.To) {
		first, packets, ok = q.findRead(g.From, w, h)
	}
	if !ok {
		q.dropHole()
		return minCost
	}
	at := ib.PSNDist(first, g.From)
	n = min(n, packets-at)
	if packets > r.Chunk {
		n = min(n, r.Chunk-at%r.Chunk)
	}
	b := &h.Scratch().Out
	q.address(b, KindReadReq)
	b.First, b.Last, b.AckReq, b.Packets, b.PSN = true, true, true, 1, g.From
	off := at * q.attr.MTU
	b.VA, b.RKey, b.Length = w.RemoteAddr+uint64(off), w.RKey, min(w.Length-off, n*q.attr.MTU)
	if g.From = ib.PSNAdd(g.From, n); g.From == g.To {
		q.dropHole()
	}
	r.Holed = true
	q.count.Retransmitted++
	q.count.Repairs++
	q.transmit(b, h)
	return minCost
}

func (q *QP) dropHole() {
	r := &q.req
	r.NumHoles--
	copy(r.Holes[:], r.Holes[1:])
}

// absorb moves on over what has been seen, after what was missing before it has come, and
// completes what that completes.
func (q *QP) absorb(now ib.Time, h Host) {
	r := &q.req
	w := &h.Scratch().Done
	for r.NumSeen > 0 && r.Tail != r.Started && (q.state == ib.StateRTS || q.state == ib.StateSQD) {
		packets, ok := q.tail(w, h)
		if !ok || w.Op != WRRead {
			return
		}
		at := ib.PSNDist(r.TailPSN, r.Una)
		for at < packets && r.Seen.has(r.Una) {
			r.Seen.drop(r.Una)
			r.NumSeen--
			r.Una = ib.PSNAdd(r.Una, 1)
			at++
			if packets > r.Chunk && at%r.Chunk == 0 {
				q.pieceDone(at, packets)
			}
		}
		if at < packets {
			r.HoleAt = now
			return
		}
		r.TailPSN = r.Una
		q.finish(w, Success, h)
	}
}

// pieceDone notes that the piece before packet end of the READ at Tail, which has so many,
// is complete. The last one is counted when the request is.
func (q *QP) pieceDone(end, packets uint32) {
	r := &q.req
	if end != packets && r.RDOut > 0 && (r.Pos != r.Tail || ib.PSNDist(r.TailPSN, r.PSN) >= end) {
		r.RDOut--
	}
}
