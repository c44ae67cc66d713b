package transport

import "vrdma.dev/vrdma/internal/ib"

// repair is the requester's half of selective repeat between vrdma hosts. The responder reports a missing
// range of PSNs, and the requester retransmits only that range. It saves its send position, moves to the
// gap, and returns:
//
//	Una ───────── gap ──────────────── PSN ──▶
//	               ▲ └─────── Resume ───┘
//	               └── found by walking the requests in flight from Tail on
//
// A gap that contains READs or atomics, or any gap while some are in flight, is handled by going back: the
// number of READs and atomics is limited, and their responses have an order of their own.
type repair struct {
	Active  bool         `cbor:"1,keyasint,omitempty"` // sending the first of Gaps; Resume is the position to return to
	Arrived uint32       `cbor:"2,keyasint,omitempty"` // the peer has received or requested all packets before this PSN
	Gaps    gapList      `cbor:"-"`                    // packets that the peer misses
	Resume  sendPosition `cbor:"3,keyasint,omitzero"`
}

// sendPosition is a saved send position of a requester.
type sendPosition struct {
	Pos     uint32 `cbor:"1,keyasint,omitempty"`
	PSN     uint32 `cbor:"2,keyasint,omitempty"`
	Off     uint32 `cbor:"3,keyasint,omitempty"`
	Unasked uint32 `cbor:"4,keyasint,omitempty"`
}

// gap is a range of missing packets: from one PSN up to another.
type gap struct{ From, To uint32 }

// gapList is a short list of gaps, in the order of their detection.
type gapList struct {
	Num  uint8
	List [16]gap
}

// full reports whether no gap can be added.
func (l *gapList) full() bool { return int(l.Num) == len(l.List) }

// add appends a gap; the list must not be full.
func (l *gapList) add(from, to uint32) {
	l.List[l.Num] = gap{from, to}
	l.Num++
}

// drop removes the first gap.
func (l *gapList) drop() {
	l.Num--
	copy(l.List[:], l.List[1:])
}

// stop discards all gaps; una is the oldest unacknowledged PSN.
func (p *repair) stop(una uint32) {
	p.Active, p.Gaps.Num, p.Arrived = false, 0, una
}

// nakRepair is a NAK code that vrdma hosts use among themselves: the packets from PSN up to the one in MSN are
// missing, and nothing is acknowledged. A sequence NAK between vrdma hosts also has the end of the missing
// range in MSN.
const nakRepair = synNak | 0x1f

// repairSoon records that the packets from one PSN up to another are missing. It returns false if this cannot
// be a gap of this requester.
func (r *requester) repairSoon(c *reqCall, from, to uint32) bool {
	n := ib.PSNDist(from, to)
	if !c.Path.Own || r.RDOut > 0 || n == 0 || r.Loss.Probing || r.Loss.RNRAt != 0 ||
		ib.PSNDist(r.Una, from) >= ib.PSNDist(r.Una, r.Max) || ib.PSNDist(r.Una, from)+n > ib.PSNDist(r.Una, r.Max) {
		return false
	}
	p := &r.Repair
	if p.Gaps.full() {
		return true // the list is full; the responder will request it again
	}
	behind := ib.PSNAdd(to, 1)
	if r.inFlight(behind) && (!r.inFlight(p.Arrived) || ib.PSNDist(r.Una, p.Arrived) <= ib.PSNDist(r.Una, to)) {
		p.Arrived = behind
	}
	p.Gaps.add(from, to)
	r.Kick = true
	// The packet after the gap has arrived; its acknowledgement will be late.
	r.CC.arrived(c.now, behind)
	r.CC.missing(c.common, r.Max, n)
	return true
}

// repair moves to the next gap, or back to the saved position. It returns false if the requester can do
// neither.
func (r *requester) repair(c *reqCall) bool {
	p := &r.Repair
	if p.Active {
		if g := &p.Gaps.List[0]; ib.PSNDist(r.PSN, g.To)-1 < ib.PSNHalf-1 && r.inFlight(r.PSN) && int32(r.Pos-r.Tail) >= 0 {
			return true // the current gap is not finished
		}
		p.Gaps.drop()
	}
	for p.Gaps.Num > 0 && r.RDOut == 0 {
		g := &p.Gaps.List[0]
		if !r.inFlight(g.From) {
			g.From = r.Una
		}
		if ib.PSNDist(g.From, g.To)-1 < ib.PSNHalf-1 && r.inFlight(g.To) {
			return r.goTo(c, g.From)
		}
		p.Gaps.drop()
	}
	p.Gaps.Num = 0
	if p.Active {
		return r.resume(c)
	}
	return true
}

// inFlight reports whether psn is in flight or the next to be sent.
func (r *requester) inFlight(psn uint32) bool {
	return ib.PSNDist(r.Una, psn) <= ib.PSNDist(r.Una, r.Max)
}

// goTo makes psn, which is in flight, the next PSN to send.
func (r *requester) goTo(c *reqCall, psn uint32) bool {
	if p := &r.Repair; !p.Active {
		p.Active = true
		p.Resume = sendPosition{Pos: r.Pos, PSN: r.PSN, Unasked: r.Unasked}
		if r.Loaded {
			p.Resume.Off = r.Off
		} else if r.Pos == r.Tail {
			p.Resume.Off = ib.PSNDist(r.TailPSN, r.PSN) * c.Attr.MTU
		}
	}
	r.Unasked = 0
	w := &c.sc.Done
	first := r.TailPSN
	for pos := r.Tail; int32(r.Started-pos) > 0; pos++ {
		n, ok := r.packetsAt(c, pos, w)
		if !ok || w.Op.isRD() {
			break
		}
		if at := ib.PSNDist(first, psn); at < n {
			r.Pos, r.PSN = pos, psn
			return r.reload(c, at*c.Attr.MTU)
		}
		first = ib.PSNAdd(first, n)
	}
	r.rewind()
	return true
}

// resume returns to the position saved before repairing, or to the oldest unacknowledged packet if that is
// further on.
func (r *requester) resume(c *reqCall) bool {
	r.Repair.Active = false
	to := r.Repair.Resume
	if !r.inFlight(to.PSN) || int32(to.Pos-r.Tail) < 0 {
		r.rewind()
		return true
	}
	r.Pos, r.PSN, r.Unasked = to.Pos, to.PSN, to.Unasked
	if to.Off == 0 {
		r.Loaded = false
		return true
	}
	return r.reload(c, to.Off)
}

// reload fetches the request at Pos into W, to continue at byte off.
func (r *requester) reload(c *reqCall, off uint32) bool {
	r.Loaded = false
	if !c.h.FetchSend(r.Pos, &r.W) {
		return false
	}
	r.Loaded, r.Off = true, off
	return r.Off == 0 || r.unchanged(c)
}
