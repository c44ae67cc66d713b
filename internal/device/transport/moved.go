package transport

import "vrdma.dev/vrdma/internal/ib"

// This file is what a queue pair does while its NIC is suspended, and after it or its peer has moved to another host.

// Postpone answers the request b with an RNR NAK of the longest timer, although the queue pair stands still. So the peer
// sends b again later, and does not count it as lost. Postpone changes nothing but counters: the state may have been
// frozen. It returns false, and sends nothing, unless b is the next request of a reliable connection or an earlier one. A
// later request is lost, because a NAK for it would acknowledge those before it.
func (q *QP) Postpone(now ib.Time, b *Burst, h *Env) bool {
	c := q.respCall(now, h)
	if b.Type != ib.RC || b.Kind >= KindReadResp || b.Src != c.Attr.DestQPN || b.SGID != c.Attr.DGID ||
		ib.PSNDist(b.PSN, q.resp.PSN) >= ib.PSNHalf {
		return false
	}
	return q.resp.putOff(&c, b.PSN, rnrLongest)
}

// Recall ends the wait of a peer that Postpone has answered: it answers the next request with an RNR NAK of the shortest
// timer. A peer that does not wait takes no notice. With a limited RNR retry count the NAK costs a peer that is no vrdma
// host one retry.
func (q *QP) Recall(now ib.Time, h *Env) {
	c := q.respCall(now, h)
	q.resp.putOff(&c, q.resp.PSN, rnrShortest)
}

// Timer codes of RNR NAKs: 655 ms and 10 microseconds.
const (
	rnrLongest  = 0
	rnrShortest = 1
)

// putOff answers the request psn with an RNR NAK. It returns false if there can be no request.
func (rs *responder) putOff(c *respCall, psn uint32, code uint8) bool {
	if c.Conf.Type != ib.RC || c.State < ib.StateRTR || c.State > ib.StateSQE {
		return false
	}
	if rs.Res.Pending > 0 {
		// The NAK must not say that the READ which is being answered was answered.
		e := &rs.Res.Ring[rs.Res.Next]
		if p := ib.PSNAdd(e.PSN, e.Off/c.Attr.MTU); ib.PSNDist(p, psn) < ib.PSNHalf {
			psn = p
		}
	}
	c.Count.SentRNR++
	rs.answer(c, KindAck, psn, RNRNak|code, 0, rs.MSN)
	return true
}

// Moved sets the path after the queue pair or its peer has moved, or has stood still: what is outstanding may be lost.
// The requester sends it again at once, from the oldest unacknowledged packet on. That uses no retry, and ends a wait
// after an RNR NAK. Unlike with SetPath, Remote may change.
func (q *QP) Moved(now ib.Time, p Path) {
	q.SetPath(p)
	q.resp.Episode, q.resp.Nak = 0, naks{}
	if q.common.Conf.Type == ib.RC && q.common.running() && q.req.Una != q.req.Max {
		c, r := &q.common, &q.req
		r.Loss.stop()
		r.Loss.progress(c)
		r.CC.stop(r.Una)
		r.rewind()
		r.restartTimer(c, now)
	}
}
