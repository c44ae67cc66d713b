package engine

import (
	"vrdma.dev/vrdma/internal/device/memory"
	"vrdma.dev/vrdma/internal/device/nic"
	"vrdma.dev/vrdma/internal/device/transport"
	"vrdma.dev/vrdma/internal/ib"
)

// The local link: the destination is a queue pair of this daemon, and a burst is handed over
// whole. The responder does the only copy.
//
//	requester ── Send ──▶ deliver ──▶ responder       at once, within the sender's turn
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

// Send implements transport.Sender. Requests and READ responses reach a peer of this daemon
// before it returns; acknowledgements wait until the sender's call has ended, because the
// requester they are for may be the one that is running.
func (t *task) Send(b *transport.Burst) {
	if b.Type == ib.UD && !t.q.MayTell(&b.DGID) {
		return
	}
	if t.e.sched.nics.Limited() {
		t.e.sent(t, b)
	}
	if b.Type == ib.UD && b.DGID.IsMulticast() {
		t.e.multicast(t, b)
		return
	}
	r := &t.route
	if r.stale(t, b) {
		t.peer = nil
		t.find(&b.SGID, &b.DGID)
	}
	e := t.e
	if r.card == nil {
		e.leaveHost(t, b)
		return
	}
	if e.net.tap != nil {
		e.net.tap.Burst(b)
	}
	to := t.peer
	if to == nil || to.q.Num() != b.Dst || to.q.Gone() || b.Type == ib.UD {
		if to = t.findPeer(b); to == nil {
			t.card.nic.Drop(nic.DropNoQP, b.Packets)
			return // lost, as on a wire: the sender's timer will tell it
		}
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

// leaveHost sends b to another host, if it is for one.
func (e *Engine) leaveHost(t *task, b *transport.Burst) {
	if t.route.under != nil {
		e.depart(t, &t.route, b)
		return
	}
	t.card.nic.Drop(nic.DropNoNIC, b.Packets)
	if e.net.tap != nil {
		e.net.tap.Burst(b) // it leads nowhere, which somebody may want to see
	}
}

// supersedes reports whether ACK b makes the earlier ACK a superfluous. NAKs stay.
func supersedes(b, a *transport.Burst) bool {
	return b.Kind == transport.KindAck && a.Kind == transport.KindAck && b.Syndrome>>5 == 0 && a.Syndrome>>5 == 0 &&
		b.Src == a.Src && b.SGID == a.SGID
}

// findPeer finds the queue pair that a burst is for, at the NIC of this daemon that the route
// leads to; nil: nobody is there.
func (t *task) findPeer(b *transport.Burst) *task {
	p := t.route.card.taskAt(b.Dst)
	if b.Type != ib.UD {
		t.peer = p
	}
	return p
}

// deliver hands b to a queue pair of this daemon and sees to what follows from it.
func (e *Engine) deliver(to *task, b *transport.Burst) {
	if e.sched.nics.Limited() {
		e.cameIn(to, b)
	}
	var copied *memory.Buffer
	if !to.parked {
		if to.receive(b) {
			e.received(to, b)
			if e.stall.seen.Load() {
				e.stalled(to)
			}
			return
		}
		copied = to.q.Copied(b.Data)
	}
	e.park(to, b, copied)
	if e.stall.seen.Load() {
		e.stalled(to)
	}
}

// receive gives b to the state machine; see transport.QP.Receive.
func (t *task) receive(b *transport.Burst) (taken bool) {
	if b.Type == ib.UD && !t.q.MayHear(&b.SGID) {
		return true
	}
	t.q.Offer()
	if !t.q.Transport().Receive(t.e.now, b, t.q.Env()) {
		return false
	}
	t.q.Taken()
	return true
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
