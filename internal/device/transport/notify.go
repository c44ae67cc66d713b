package transport

import "vrdma.dev/vrdma/internal/ib"

// notifier answers packets with the Congestion Experienced mark with congestion notification packets (CNP)
// to their sender, at a limited rate.
type notifier struct {
	NotifiedAt ib.Time `cbor:"1,keyasint,omitempty"` // when the last CNP was sent
}

// notifyEvery is the minimum time between two CNPs.
const notifyEvery = ib.Time(50_000)

// due reports whether to send a CNP now, and records that it is sent.
func (n *notifier) due(now ib.Time) bool {
	if n.NotifiedAt != 0 && now-n.NotifiedAt < notifyEvery {
		return false
	}
	n.NotifiedAt = now
	return true
}

// notify handles the burst b, which has the mark. For marked READ data the requester also reduces its own
// window. A vrdma host then gets no CNP: requesting less data helps at once.
func (q *QP) notify(now ib.Time, b *Burst, h *Env) {
	c := &q.common
	if !c.Path.Remote {
		return
	}
	if b.Kind == KindReadResp {
		q.req.CC.marked(c, q.req.Max)
		if c.Path.Own {
			return
		}
	}
	if !q.cnp.due(now) {
		return
	}
	n := &h.scratch.In
	to, at := b.Src, b.SGID
	c.address(n, KindCNP)
	n.First, n.Last, n.Packets = true, true, 1
	n.Dst, n.DGID = to, at
	c.countSent(n)
	h.link.Send(n)
}

// Congested handles a CNP from the host at from: packets of q met congestion.
func (q *QP) Congested(now ib.Time, from ib.GID) {
	c := &q.common
	if !c.Path.Remote || c.Conf.Type != ib.UD && from != c.Attr.DGID {
		c.Count.Dropped++
		return
	}
	if c.Conf.Type == ib.RC {
		q.req.CC.marked(c, q.req.Max)
	}
	if c.unacknowledged() {
		c.Pace.slow(now)
	}
}
