package engine

import (
	"vrdma/internal/nic"
	"vrdma/internal/transport"
)

// This file is the local link: the destination is a queue pair of the same NIC, and
// a burst is handed over whole. The responder does the only copy.

// Transmit implements nic.Link. Requests and READ responses reach the peer before
// it returns; acknowledgements wait until the sender's call has ended, because the
// requester they are for may be the one that is running.
func (e *Engine) Transmit(from *nic.QP, b *transport.Burst) {
	if e.port != nil && e.remote(from, b) {
		e.depart(from, b)
		return
	}
	if e.tap != nil {
		e.tap.Burst(b)
	}
	switch b.Kind {
	case transport.KindAck, transport.KindAtomicResp:
		// A later ACK says what an earlier one said.
		if l := e.replies.last(); l != nil && supersedes(b, l) {
			*l = *b
			return
		}
		*e.replies.push() = *b
		return
	}
	if b.Type == transport.UD && nic.IsMulticast(&b.DGID) {
		e.multicast(from, b)
		return
	}
	if q := e.resolve(from, b); q != nil {
		e.receive(q, b)
	}
}

// supersedes reports whether ACK b makes the earlier ACK a superfluous. NAKs stay.
func supersedes(b, a *transport.Burst) bool {
	return b.Kind == transport.KindAck && a.Kind == transport.KindAck && b.Syndrome>>5 == 0 && a.Syndrome>>5 == 0 &&
		b.Dst == a.Dst && b.Src == a.Src
}

// resolve finds the queue pair that a burst is for. Nobody there means that the
// burst is lost, as on a wire: the sender's timer will tell it.
func (e *Engine) resolve(from *nic.QP, b *transport.Burst) *nic.QP {
	if p := from.Sched.Peer; p != nil && p.Num() == b.Dst && !p.Gone() && b.Type != transport.UD {
		return p
	}
	if !e.nic.Local(&b.DGID) {
		return nil
	}
	q := e.nic.QP(b.Dst)
	if b.Type != transport.UD {
		from.Sched.Peer = q
	}
	return q
}

// receive hands b to q and sees to what follows from it.
func (e *Engine) receive(q *nic.QP, b *transport.Burst) {
	if q.Sched.Parked || !q.Receive(e.now, b) {
		e.park(q, b)
		return
	}
	e.received(q, b)
}

// received sees to what follows from a burst that q has taken.
func (e *Engine) received(q *nic.QP, b *transport.Burst) {
	t := q.Transport()
	e.settle(q)
	if t.RunPending() || t.RespondPending() {
		e.schedule(q)
	}
	if b.Kind == transport.KindAck && t.WaitsForReceiver() {
		e.starve(q)
	}
}

// deliver brings acknowledgements to their requesters.
func (e *Engine) deliver() {
	for e.replies.n > 0 {
		e.reply = *e.replies.pop()
		if q := e.nic.QP(e.reply.Dst); q != nil {
			e.receive(q, &e.reply)
		}
	}
}
