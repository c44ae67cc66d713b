package transport

import "vrdma/internal/ib"

// What a requester does on a remote path that a local one does not need: fitting bursts
// to a window, and finding out early why nothing is heard.
//
// The local ACK timeout is the application's, usually tens of milliseconds, and a few of
// them end the connection. Long before that a probe asks: the oldest unacknowledged packet
// is sent again, alone, with AckReq, and the acknowledgement tells what else is missing.
//
//	…──[41]──[42]──[43 lost]        silence        [41 again] ──▶ ACK 42: go on from 43
//
// To the peer a probe is a duplicate, or what it was waiting for: it answers either. Our
// own hosts are sent the newest packet instead: what they miss before it they ask for.

// fitsPath reports whether the next burst may be sent when out packets are in flight, and
// takes note of the answer.
func (q *QP) fitsPath(now ib.Time, out uint32) bool {
	fits := q.fitsWindow(now, out)
	q.cc.Full = !fits
	return fits
}

func (q *QP) fitsWindow(now ib.Time, out uint32) bool {
	r := &q.req
	if r.Probing {
		return out == 0
	}
	if q.cc.hold(now) {
		return false
	}
	if r.Repairing {
		return true
	}
	left := packetsOf(r.W.Length-r.Off, q.attr.MTU)
	switch {
	case r.W.Op == WRRead:
		if c := q.chunk(); c != r.Chunk && r.PSN == r.Max {
			if r.Una != r.Max {
				return false
			}
			r.Chunk = c
		}
		return out == 0 || out+q.piece(left) <= r.Window+min(r.NumSeen, seenMost/2) && (r.RDOut == 0 || r.RDOut < uint32(q.attr.MaxRDAtomic))
	case r.W.Op.isRD():
		return out < r.Window
	case r.Unasked > 0:
		return true // at least one packet more, that asks
	}
	out = q.flying(out)
	// Small bursts are dear: better to wait for room than to fill what little there is.
	return out < r.Window && r.Window-out >= min(left, q.portion())
}

// flying is how many of the out packets behind Una are on their way, as far as that is
// known: one of our own hosts that asks for something has what is behind it, so what is
// missing does not hold up the rest. The host keeps only so much that is out of order.
func (q *QP) flying(out uint32) uint32 {
	n := ib.PSNDist(q.req.Una, q.req.Arrived)
	if !q.path.Own || n > out || out >= min(4*q.req.Window, stashSlots/2) {
		return out
	}
	return out - n
}

// portion is how many packets a burst is to have when the window is what limits it: few
// enough that acknowledgements of the first arrive while the last are being sent.
func (q *QP) portion() uint32 {
	r := &q.req
	n := max(r.Window/4, min(r.Window/2, 8))
	if q.cc.Spread {
		n = r.Window / 8
	}
	return max(min(n, q.most()/q.attr.MTU), 1)
}

// room is how many packets may be sent when fits has agreed.
func (q *QP) room() uint32 {
	r := &q.req
	if r.Repairing {
		return ib.PSNDist(r.PSN, r.Gaps[0].To)
	}
	out := q.flying(ib.PSNDist(r.Una, r.PSN))
	if r.Probing || out >= r.Window {
		return 1
	}
	return min(r.Window-out, q.portion())
}

// ask reports whether a burst of so many packets should ask for an ACK: if nothing could
// follow it before an ACK comes, it has to.
func (q *QP) ask(packets uint32) bool {
	r := &q.req
	if r.Repairing {
		return ib.PSNDist(r.PSN, r.Gaps[0].To) == packets
	}
	return r.Probing || r.Unasked*4 >= r.Window || q.flying(ib.PSNDist(r.Una, r.PSN))+packets+q.portion() > r.Window
}

// depart notes that b, at PSN and with as many sequence numbers, leaves for another host.
func (q *QP) depart(now ib.Time, b *Burst, psns uint32) {
	r := &q.req
	if q.conf.Type != ib.RC {
		q.pace.spend(now, b)
		return
	}
	q.cc.spend(now, psns*q.attr.MTU)
	if b.AckReq && r.PSN == r.Max {
		q.time(now, ib.PSNAdd(r.PSN, b.Packets))
	}
}

// Times until a probe, as multiples of the round trip time and at least. Our own hosts
// answer at once, so what counts is how much round trip times vary; others may be slow to
// answer for reasons of their own.
const (
	probeTrips      = 2
	probeVars       = 4
	probeLeast      = ib.Time(200_000)
	probeFirst      = ib.Time(2_000_000) // round trip time unknown
	probeTripsOther = 8
	probeLeastOther = ib.Time(8_000_000)
	probeFirstOther = ib.Time(16_000_000)
	probesMost      = 10
)

// probeAt is when to probe if nothing is heard from now on; never, if the timeout d comes
// before.
func (q *QP) probeAt(now, d ib.Time) ib.Time {
	c := &q.cc
	wait := probeFirst
	switch {
	case q.path.Own && c.SRTT != 0:
		wait = max(probeTrips*c.SRTT, c.SRTT+probeVars*c.Var, probeLeast)
	case !q.path.Own && c.SRTT != 0:
		wait = max(probeTripsOther*c.SRTT, probeLeastOther)
	case !q.path.Own:
		wait = probeFirstOther
	}
	wait <<= min(q.req.Probes, probesMost)
	if d != 0 && wait >= d {
		return 0
	}
	return now + wait
}

// probe sends the oldest unacknowledged packet again; to our own hosts, which say what is
// missing before it, the newest. It costs no retry and leaves the timeout as it is.
func (q *QP) probe(now ib.Time) {
	r := &q.req
	r.ProbeAt = 0
	if r.Una == r.Max {
		return
	}
	q.count.Probes++
	q.cc.ProbeSent = now
	if r.Probes < probesMost {
		r.Probes++
	}
	if !q.repairLater(now, ib.PSNAdd(r.Max, ib.PSNMask), r.Max) && !q.probeReads(now) {
		r.Probing = true
		q.rewind()
	}
	r.ProbeAt = q.probeAt(now, AckTimeout(q.attr.Timeout))
}

// wentBack reports whether the requester went back less than d ago and has heard no news
// since: what arrives now may have been sent before.
func (q *QP) wentBack(now, d ib.Time) bool {
	return q.path.Remote && q.req.Retrying && now-q.cc.BackAt < d
}
