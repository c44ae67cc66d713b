package transport

import "vrdma.dev/vrdma/internal/ib"

// notifier answers packets that arrive with the mark Congestion Experienced: it tells their
// sender with a congestion notification packet (CNP), but not with one for each.
type notifier struct {
	NotifiedAt ib.Time // when the peer was last told of congestion
}

// notifyEvery is how often a peer is told of congestion at most.
const notifyEvery = ib.Time(50_000)

// due reports whether the peer is to be told now, and notes that it is.
func (n *notifier) due(now ib.Time) bool {
	if n.NotifiedAt != 0 && now-n.NotifiedAt < notifyEvery {
		return false
	}
	n.NotifiedAt = now
	return true
}

// notify acts on b, which has the mark. The data of a READ was asked for: asking for less
// helps at once.
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

// Congested says that the host at from has seen congestion on packets of q: a CNP came.
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
