package transport

import "vrdma/internal/ib"

// The requester's half of selective repeat, between our own hosts: the responder names
// what is missing, from one PSN up to another, and only that is sent again. To do so the
// requester leaves the place where it is sending, goes to the gap, and comes back:
//
//	Una ───────── gap ──────────────── PSN ──▶
//	               ▲ └─────── Resume ───┘
//	               └── found by walking the requests in flight from Tail on
//
// A gap that READs or atomics are in, or in flight with, is left to going back: they are
// counted, and their answers have an order of their own.

// nakRepair is a NAK code of ours, sent to our own hosts only: the packets from PSN up to
// the one in MSN are missing, and nothing is acknowledged. A sequence NAK to our own hosts
// has the end of what is missing in MSN too.
const nakRepair = synNak | 0x1f

// gap is packets that are missing.
type gap struct{ From, To uint32 }

// repairLater notes that the packets from one PSN up to another are missing. It reports
// false if that is none of this requester's gaps.
func (q *QP) repairLater(now ib.Time, from, to uint32) bool {
	r := &q.req
	n := ib.PSNDist(from, to)
	if !q.path.Own || r.RDOut > 0 || n == 0 || r.Probing || r.RNRAt != 0 ||
		ib.PSNDist(r.Una, from) >= ib.PSNDist(r.Una, r.Max) || ib.PSNDist(r.Una, from)+n > ib.PSNDist(r.Una, r.Max) {
		return false
	}
	if int(r.NumGaps) == len(r.Gaps) {
		return true // the responder will ask again
	}
	if q.ahead(ib.PSNAdd(to, 1)) && (!q.ahead(r.Arrived) || ib.PSNDist(r.Una, r.Arrived) <= ib.PSNDist(r.Una, to)) {
		r.Arrived = ib.PSNAdd(to, 1)
	}
	r.Gaps[r.NumGaps] = gap{from, to}
	r.NumGaps++
	r.Kick = true
	// The packet behind the gap has arrived; the acknowledgement of it will be late.
	q.cc.arrived(now, ib.PSNAdd(to, 1))
	q.cc.Unsure = q.cc.SRTT != 0
	if n >= lossRun {
		q.cutLoss()
	} else {
		q.cutRepaired()
	}
	return true
}

// lossRun is how many packets lost in a row look like a buffer that was full.
const lossRun = 4

// repair goes to the next gap, or back to where sending went on. It reports false if the
// requester can do neither.
func (q *QP) repair(h Host) bool {
	r := &q.req
	if r.Repairing {
		if g := &r.Gaps[0]; ib.PSNDist(r.PSN, g.To)-1 < ib.PSNHalf-1 && q.ahead(r.PSN) && int32(r.Pos-r.Tail) >= 0 {
			return true // still at it
		}
		r.NumGaps--
		copy(r.Gaps[:], r.Gaps[1:])
	}
	for r.NumGaps > 0 && r.RDOut == 0 {
		g := &r.Gaps[0]
		if !q.ahead(g.From) {
			g.From = r.Una
		}
		if ib.PSNDist(g.From, g.To)-1 < ib.PSNHalf-1 && q.ahead(g.To) {
			return q.goTo(g.From, h)
		}
		r.NumGaps--
		copy(r.Gaps[:], r.Gaps[1:])
	}
	if r.NumGaps > 0 {
		r.NumGaps = 0
	}
	if r.Repairing {
		return q.resume(h)
	}
	return true
}

// ahead reports whether psn is in flight, or the next one to be.
func (q *QP) ahead(psn uint32) bool {
	return ib.PSNDist(q.req.Una, psn) <= ib.PSNDist(q.req.Una, q.req.Max)
}

// goTo makes psn, which is in flight, the next to send.
func (q *QP) goTo(psn uint32, h Host) bool {
	r := &q.req
	if !r.Repairing {
		r.Repairing = true
		r.ResumePos, r.ResumePSN, r.ResumeOff, r.ResumeUnasked = r.Pos, r.PSN, 0, r.Unasked
		if r.Loaded {
			r.ResumeOff = r.Off
		} else if r.Pos == r.Tail {
			r.ResumeOff = ib.PSNDist(r.TailPSN, r.PSN) * q.attr.MTU
		}
	}
	r.Unasked = 0
	w := &h.Scratch().Done
	first := r.TailPSN
	for pos := r.Tail; int32(r.Started-pos) > 0; pos++ {
		n, ok := q.packetsAt(pos, w, h)
		if !ok || w.Op.isRD() {
			break
		}
		if at := ib.PSNDist(first, psn); at < n {
			r.Pos, r.PSN = pos, psn
			return q.reload(at*q.attr.MTU, h)
		}
		first = ib.PSNAdd(first, n)
	}
	q.rewind()
	return true
}

// resume goes back to where repairing began, or to what has not been acknowledged if that
// is further on.
func (q *QP) resume(h Host) bool {
	r := &q.req
	r.Repairing = false
	if !q.ahead(r.ResumePSN) || int32(r.ResumePos-r.Tail) < 0 {
		q.rewind()
		return true
	}
	r.Pos, r.PSN, r.Unasked = r.ResumePos, r.ResumePSN, r.ResumeUnasked
	if r.ResumeOff == 0 {
		r.Loaded = false
		return true
	}
	return q.reload(r.ResumeOff, h)
}

// reload brings the request at Pos into W, to go on from byte off.
func (q *QP) reload(off uint32, h Host) bool {
	r := &q.req
	r.Loaded = false
	if !h.FetchSend(r.Pos, &r.W) {
		return false
	}
	r.Loaded, r.Off = true, off
	return r.Off == 0 || q.unchanged(h)
}
