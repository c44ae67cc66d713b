package transport

import "vrdma.dev/vrdma/internal/ib"

// reassembly tracks READ responses from vrdma hosts that arrive out of order. The requester places their
// data at once and requests the missing packets again, with READ requests for exactly these:
//
//	arrived  … 40 41 __ 43 44 __ 46        READ 42, one packet    READ 45, one packet
//	                 └─ Una  └──── Seen ──┘
//
// The responder treats that as a duplicate request for a part of a READ. A request still completes only when
// all of its data, and everything before it, has arrived. If the missing range includes other operations, or
// on a timeout, the requester goes back as usual and discards this state.
type reassembly struct {
	NumSeen uint32  `cbor:"1,keyasint,omitempty"` // packets in Seen
	SeenEnd uint32  `cbor:"2,keyasint,omitempty"` // one past the newest of them
	Seen    seen    `cbor:"-"`                    // packets that have arrived ahead of Una
	Holes   gapList `cbor:"-"`                    // missing data to request again
	HoleAt  ib.Time `cbor:"3,keyasint,omitempty"` // when the first missing packet was last requested
	Asked   bool    `cbor:"4,keyasint,omitempty"` // parts of pieces have been requested
}

const (
	// seenMost is the maximum distance ahead of Una at which data is placed, in packets.
	seenMost = 2048
	// holesMost is the maximum number of holes requested at once.
	holesMost = 8
)

// seen is a set of PSNs that are less than seenMost apart.
type seen [seenMost / 64]uint64

func (s *seen) has(psn uint32) bool { return s[psn%seenMost/64]&(1<<(psn%64)) != 0 }
func (s *seen) set(psn uint32)      { s[psn%seenMost/64] |= 1 << (psn % 64) }
func (s *seen) drop(psn uint32)     { s[psn%seenMost/64] &^= 1 << (psn % 64) }

// clear discards the set of packets seen.
func (a *reassembly) clear() {
	if a.NumSeen != 0 {
		a.Seen, a.NumSeen = seen{}, 0
	}
	a.Holes.Num = 0
}

// see records that n packets from psn on have arrived.
func (a *reassembly) see(psn, n uint32) {
	for ; n > 0; n-- {
		if !a.Seen.has(psn) {
			a.Seen.set(psn)
			a.NumSeen++
		}
		psn = ib.PSNAdd(psn, 1)
	}
}

// forget removes the packets from one PSN up to another from the set.
func (a *reassembly) forget(from, to uint32) {
	for ; from != to; from = ib.PSNAdd(from, 1) {
		if a.Seen.has(from) {
			a.Seen.drop(from)
			a.NumSeen--
		}
	}
}

// ask queues a request for the packets from one PSN up to another, if the list has space.
func (a *reassembly) ask(from, to uint32) (noted bool) {
	if a.Holes.Num >= holesMost {
		return false
	}
	a.Holes.add(from, to)
	return true
}

// askAll queues requests for everything missing between una and the newest packet seen, as far as the list
// has space.
func (a *reassembly) askAll(now ib.Time, una uint32) (noted bool) {
	a.Holes.Num, a.HoleAt = 0, now
	for psn := una; psn != a.SeenEnd && a.Holes.Num < holesMost; {
		for psn != a.SeenEnd && a.Seen.has(psn) {
			psn = ib.PSNAdd(psn, 1)
		}
		from := psn
		for psn != a.SeenEnd && !a.Seen.has(psn) {
			psn = ib.PSNAdd(psn, 1)
		}
		if from != psn {
			noted = a.ask(from, psn) || noted
		}
	}
	return noted
}

// findRead loads the READ that contains packet psn into w. It returns the READ's first PSN and number of
// packets; ok is false if other requests lie before it, or if there is none.
func (r *requester) findRead(c *reqCall, psn uint32, w *SendWQE) (first, packets uint32, ok bool) {
	first = r.TailPSN
	for pos := r.Tail; int32(r.Started-pos) > 0; pos++ {
		packets, ok = r.packetsAt(c, pos, w)
		if !ok || w.Op != WRRead {
			return 0, 0, false
		}
		if ib.PSNDist(first, psn) < packets {
			ok = c.h.FetchSend(pos, w) && w.Op == WRRead && packetsOf(w.Length, c.Attr.MTU) == packets
			return first, packets, ok
		}
		first = ib.PSNAdd(first, packets)
	}
	return 0, 0, false
}

// keepRead places the data of b, which is ahead of a missing packet. kept reports success; later reports
// that the memory is not available yet.
func (r *requester) keepRead(c *reqCall, b *Burst) (kept, later bool) {
	ahead := ib.PSNDist(r.Una, b.PSN) + b.Packets
	if !c.Path.Own || ahead > seenMost || ahead > ib.PSNDist(r.Una, r.Max) {
		return false, false
	}
	w := &c.sc.Done
	first, packets, ok := r.findRead(c, b.PSN, w)
	if !ok {
		return false, false
	}
	start := ib.PSNDist(first, b.PSN)
	end := start + b.Packets
	if end > packets || packets > r.Chunk && start/r.Chunk != (end-1)/r.Chunk ||
		b.size() != min(w.Length-start*c.Attr.MTU, b.Packets*c.Attr.MTU) {
		return false, false
	}
	if b.size() > 0 {
		if st := c.h.ScatterSend(w, start*c.Attr.MTU, b.Data); st != Success {
			return false, st == Later
		}
	}
	r.sawRead(c, b)
	if r.Blocked {
		r.Kick = true
	}
	return true, false
}

// sawRead records that the data of b is in place, and requests what is missing before it.
func (r *requester) sawRead(c *reqCall, b *Burst) {
	a := &r.Reads
	if a.NumSeen == 0 {
		a.SeenEnd, a.HoleAt = r.Una, c.now
	}
	a.see(b.PSN, b.Packets)
	end := ib.PSNAdd(b.PSN, b.Packets)
	r.CC.arrived(c.now, end)
	if gone := ib.PSNDist(a.SeenEnd, b.PSN); gone < ib.PSNHalf {
		if gone > 0 {
			c.Count.ImplicitNaks++
			r.CC.missing(c.common, r.Max, gone)
			if a.ask(a.SeenEnd, b.PSN) {
				r.Kick = true
			}
		}
		a.SeenEnd = end
	}
	// patience is how long repeated data may take.
	patience := max(2*r.CC.SRTT, r.CC.SRTT+probeVars*r.CC.Var, nakAgainOwn)
	if c.now-a.HoleAt >= patience && a.askAll(c.now, r.Una) {
		r.Kick = true
	}
}

// probeReads requests data that is known to be missing when nothing arrives. It does not request data that
// may only be late. It returns false if nothing is known to be missing, or if requests had no effect: then
// the requester should go back.
func (r *requester) probeReads(c *reqCall) bool {
	if !c.Path.Own || r.Reads.NumSeen == 0 || r.Loss.Probes > 3 {
		return false
	}
	if r.Reads.askAll(c.now, r.Una) {
		r.Kick = true
	}
	return true
}

// sendHole requests the first hole, as far as one original READ request extends.
func (r *requester) sendHole(c *reqCall) int {
	holes := &r.Reads.Holes
	g := &holes.List[0]
	if !r.inFlight(g.From) {
		g.From = r.Una
	}
	n := ib.PSNDist(g.From, g.To)
	w := &c.sc.Done
	first, packets, ok := uint32(0), uint32(0), false
	if n-1 < seenMost && r.inFlight(g.To) {
		first, packets, ok = r.findRead(c, g.From, w)
	}
	if !ok {
		holes.drop()
		return minCost
	}
	at := ib.PSNDist(first, g.From)
	n = min(n, packets-at)
	if packets > r.Chunk {
		n = min(n, r.Chunk-at%r.Chunk)
	}
	b := &c.sc.Out
	c.address(b, KindReadReq)
	b.First, b.Last, b.AckReq, b.Packets, b.PSN = true, true, true, 1, g.From
	off := at * c.Attr.MTU
	b.VA, b.RKey, b.Length = w.RemoteAddr+uint64(off), w.RKey, min(w.Length-off, n*c.Attr.MTU)
	if g.From = ib.PSNAdd(g.From, n); g.From == g.To {
		holes.drop()
	}
	r.Reads.Asked = true
	c.Count.Retransmitted++
	c.Count.Repairs++
	c.transmit(b)
	return minCost
}

// absorb advances over packets already seen, once the missing packet before them has arrived, and completes
// the requests that this completes.
func (r *requester) absorb(c *reqCall) {
	a, w := &r.Reads, &c.sc.Done
	for a.NumSeen > 0 && r.Tail != r.Started && c.running() {
		packets, ok := r.packetsAt(c, r.Tail, w)
		if !ok || w.Op != WRRead {
			return
		}
		at := ib.PSNDist(r.TailPSN, r.Una)
		for at < packets && a.Seen.has(r.Una) {
			a.Seen.drop(r.Una)
			a.NumSeen--
			r.Una = ib.PSNAdd(r.Una, 1)
			at++
			if packets > r.Chunk && at%r.Chunk == 0 {
				r.pieceDone(at, packets)
			}
		}
		if at < packets {
			a.HoleAt = c.now
			return
		}
		r.TailPSN = r.Una
		r.finish(c, w, Success)
	}
}

// pieceDone records that the piece that ends before packet end of the READ at Tail is complete; the READ has
// packets in total. The last piece counts when the request completes.
func (r *requester) pieceDone(end, packets uint32) {
	if end != packets && r.RDOut > 0 && (r.Pos != r.Tail || ib.PSNDist(r.TailPSN, r.PSN) >= end) {
		r.RDOut--
	}
}
