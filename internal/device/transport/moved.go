package transport

import "vrdma.dev/vrdma/internal/ib"

// This file is what a queue pair does while its NIC is suspended, and after it or its peer has moved to another host.

// Postpone answers the request b with an RNR NAK whose timer is at least d, although the queue pair stands still. So the
// peer sends b again later, and does not count it as lost. Postpone changes nothing but counters: the state may have
// been frozen. It returns false, and sends nothing, unless b is the next request of a reliable connection or an earlier
// one. A later request is lost, because a NAK for it would acknowledge those before it.
func (q *QP) Postpone(now ib.Time, b *Burst, d ib.Time, h *Env) bool {
	c := q.respCall(now, h)
	if b.Type != ib.RC || c.Conf.Type != ib.RC || b.Kind >= KindReadResp || b.Src != c.Attr.DestQPN || b.SGID != c.Attr.DGID {
		return false
	}
	return q.resp.postpone(&c, b.PSN, d)
}

// postpone is Postpone for a request with a PSN that comes from the peer.
func (rs *responder) postpone(c *respCall, psn uint32, d ib.Time) bool {
	if c.State < ib.StateRTR || c.State > ib.StateSQE || ib.PSNDist(psn, rs.PSN) >= ib.PSNHalf {
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
	rs.answer(c, KindAck, psn, RNRNak|RNRCode(d), 0, rs.MSN)
	return true
}

// RNRCode returns the timer code of the shortest wait that is not shorter than d, or of the longest one.
func RNRCode(d ib.Time) uint8 {
	for code := uint8(1); code < uint8(len(rnrDelay)); code++ {
		if RNRDelay(code) >= d {
			return code
		}
	}
	return 0
}

// Moved sets the path after the queue pair or its peer has moved, or has stood still: what is outstanding may be lost.
// The requester sends it again at once, from the oldest unacknowledged packet on. That uses no retry, and ends a wait
// after an RNR NAK. Unlike with SetPath, Remote may change.
func (q *QP) Moved(now ib.Time, p Path) {
	q.SetPath(p)
	q.resp.Episode, q.resp.Nak = 0, naks{}
	if q.common.Conf.Type == ib.RC && q.common.running() && q.req.Una != q.req.Max {
		q.req.startAgain(&q.common, now)
	}
}

// startAgain goes back to the oldest unacknowledged packet. Nothing that was sent before counts.
func (r *requester) startAgain(c *common, now ib.Time) {
	r.Loss.stop()
	r.Loss.progress(c)
	r.CC.stop(r.Una)
	r.rewind()
	r.restartTimer(c, now)
}
