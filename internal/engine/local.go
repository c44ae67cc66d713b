package engine

import (
	"vrdma/internal/ib"
	"vrdma/internal/transport"
)

// The local link: the destination is a queue pair of this daemon, and a burst is handed over
// whole. The responder does the only copy.
//
//	requester ── transmit ──▶ deliver ──▶ responder       at once, within the sender's turn
//	    ▲                                     │
//	    └── deliver ◀── deliverReplies ◀── replies        when the sender's call has ended
//
// deliver is the one function that brings a burst to a queue pair of this daemon. The queue
// pair belongs to the same loop today, so it is a call. Of another loop's it would be a queue
// of that loop, and the burst's data would have to stay valid until it was taken.
type local struct {
	replies queue[reply]
	reply   reply // the one being delivered
	starved starved
	inboxes inboxes
	stuck   stuck
}

// A reply is an acknowledgement on its way to a requester.
type reply struct {
	to *task
	b  transport.Burst
}

// waiting reports whether the loop has something to do here.
func (l *local) waiting() bool { return l.replies.n > 0 || l.starved.n > 0 }

// transmit carries b away. Requests and READ responses reach a peer of this daemon before
// it returns; acknowledgements wait until the sender's call has ended, because the
// requester they are for may be the one that is running.
func (e *Engine) transmit(from *task, b *transport.Burst) {
	if b.Type == ib.UD && b.DGID.IsMulticast() {
		e.multicast(from, b)
		return
	}
	r := from.routeOf(b)
	if e.net.port != nil && r.remote() {
		e.depart(from, r, b)
		return
	}
	if e.net.tap != nil {
		e.net.tap.Burst(b)
	}
	to := from.peerOf(r, b)
	if to == nil {
		return // lost, as on a wire: the sender's timer will tell it
	}
	switch b.Kind {
	case transport.KindAck, transport.KindAtomicResp:
		// A later ACK says what an earlier one said.
		if l := e.local.replies.last(); l != nil && l.to == to && supersedes(b, &l.b) {
			l.b = *b
			return
		}
		l := e.local.replies.push()
		l.to, l.b = to, *b
		return
	}
	e.deliver(to, b)
}

// supersedes reports whether ACK b makes the earlier ACK a superfluous. NAKs stay.
func supersedes(b, a *transport.Burst) bool {
	return b.Kind == transport.KindAck && a.Kind == transport.KindAck && b.Syndrome>>5 == 0 && a.Syndrome>>5 == 0 &&
		b.Src == a.Src && b.SGID == a.SGID
}

// peerOf finds the queue pair that a burst is for, where r leads to a NIC of this daemon.
func (t *task) peerOf(r *route, b *transport.Burst) *task {
	if p := t.peer; p != nil && p.q.Num() == b.Dst && !p.q.Gone() && b.Type != ib.UD {
		return p
	}
	if r.card == nil {
		return nil
	}
	p := r.card.taskAt(b.Dst)
	if b.Type != ib.UD {
		t.peer = p
	}
	return p
}

// deliver hands b to a queue pair of this daemon and sees to what follows from it.
func (e *Engine) deliver(to *task, b *transport.Burst) {
	if to.parked || !to.q.Receive(e.now, b) {
		e.park(to, b)
		return
	}
	e.received(to, b)
}

// received sees to what follows from a burst that t has taken.
func (e *Engine) received(t *task, b *transport.Burst) {
	m := t.q.Transport()
	e.changed(t)
	if m.RunPending() || m.RespondPending() {
		e.schedule(t)
	}
	if b.Kind == transport.KindAck && m.WaitsForReceiver() {
		e.starve(t)
	}
}

// deliverReplies brings acknowledgements to their requesters.
func (e *Engine) deliverReplies() {
	l := &e.local
	for l.replies.n > 0 {
		p := l.replies.pop()
		l.reply = *p
		p.to = nil
		if to := l.reply.to; !to.q.Gone() {
			e.deliver(to, &l.reply.b)
		}
	}
}
