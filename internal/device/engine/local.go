package engine

import (
	"log/slog"

	"vrdma.dev/vrdma/internal/device/fifo"
	"vrdma.dev/vrdma/internal/device/memory"
	"vrdma.dev/vrdma/internal/device/nic"
	"vrdma.dev/vrdma/internal/device/transport"
	"vrdma.dev/vrdma/internal/ib"
)

// local is the local link: the destination of a burst is a queue pair of this daemon, which
// receives it as a whole. The responder makes the only copy.
//
//	requester ── Send ──▶ deliver ──▶ responder       at once, within the sender's turn
//	    ▲                                     │
//	    └── deliver ◀── deliverReplies ◀── replies        when the sender's call has ended
//
// task.deliver is the one function that brings a burst to a queue pair of this daemon. Both are on the same
// loop, see loops.go.
type local struct {
	replies fifo.Queue[reply]
	reply   reply // the one being delivered
	starved starved
	inboxes inboxes
	stuck   stuck
	across  uint64 // packets for queue pairs of other loops: handed over (crossing.go), or lost if a queue pair here has sent them

	shared *nic.Loop
	log    *slog.Logger
}

// A reply is an acknowledgement on its way to a requester.
type reply struct {
	to *task
	b  transport.Burst
}

// waiting reports whether the loop has something to do here.
func (l *local) waiting() bool { return l.replies.Len() > 0 || l.starved.n > 0 }

// Send implements transport.Sender. Requests and READ responses reach a peer of this daemon
// before it returns. Acknowledgements wait until the sender's call has ended, because their
// requester may be the one that is running.
func (t *task) Send(b *transport.Burst) {
	if f := t.e.faults; f != nil && f.sends(t, b) {
		return
	}
	if b.Type == ib.UD && !t.q.MayTell(&b.DGID) {
		return
	}
	e := t.e
	if e.sched.nics.Limited() {
		e.sched.chargeOut(t, b)
	}
	if b.Type == ib.UD && b.DGID.IsMulticast() {
		t.multicast(b)
		return
	}
	r := &t.route
	if r.stale(t, b) {
		t.peer, t.asked = nil, false
		t.find(&b.SGID, &b.DGID)
	}
	if r.adapter == nil {
		t.leaveHost(b)
		return
	}
	if e.net.tap != nil {
		e.net.tap.Burst(b)
	}
	to := t.peer
	if to == nil || to.q.Num() != b.Dst || to.q.Gone() || b.Type == ib.UD {
		if to = t.findPeer(b); to == nil {
			t.adapter.part.Drop(nic.DropNoQP, b.Packets)
			return // lost, as on a wire: the sender's timer detects it
		}
	}
	switch b.Kind {
	case transport.KindAck, transport.KindAtomicResp:
		// A later ACK includes an earlier one.
		if l := e.local.replies.Last(); l != nil && l.to == to && supersedes(b, &l.b) {
			l.b = *b
			return
		}
		l := e.local.replies.Push()
		l.to, l.b = to, *b
		return
	}
	to.deliver(b)
}

// leaveHost sends b to another host, or drops it if there is no way.
func (t *task) leaveHost(b *transport.Burst) {
	n := &t.e.net
	if t.route.under != nil {
		n.depart(t, &t.route, b)
		return
	}
	if t.route.to.IsValid() && t.e.number > 0 {
		t.regroupLater()
	}
	t.adapter.part.Drop(nic.DropNoNIC, b.Packets)
	if n.tap != nil {
		n.tap.Burst(b) // a capture shows packets without a destination, too
	}
}

// supersedes reports whether ACK b makes the earlier ACK a unnecessary. NAKs stay.
func supersedes(b, a *transport.Burst) bool {
	return b.Kind == transport.KindAck && a.Kind == transport.KindAck && b.Syndrome>>5 == 0 && a.Syndrome>>5 == 0 &&
		b.Src == a.Src && b.SGID == a.SGID
}

// findPeer returns the destination of a burst, at the NIC of this daemon that the route leads to;
// nil: there is no such queue pair.
func (t *task) findPeer(b *transport.Burst) *task {
	p := t.route.adapter.taskAt(b.Dst)
	if p != nil && p.e != t.e {
		t.e.local.across += uint64(b.Packets)
		if p.names(t) {
			t.regroupLater()
		}
		return nil
	}
	if b.Type != ib.UD {
		t.peer = p
	}
	return p
}

// deliver gives b to t, or keeps it in the inbox of t.
func (t *task) deliver(b *transport.Burst) {
	if t.adapter.suspended {
		t.postpone(b)
		return
	}
	if f := t.e.faults; f != nil && f.receives(t, b) {
		return
	}
	if s := &t.e.sched; s.nics.Limited() {
		s.chargeIn(t, b)
	}
	var copied *memory.Buffer
	if !t.parked {
		if t.receive(b) {
			t.received(b)
			if t.e.stall.seen.Load() {
				t.e.stall.blame(t)
			}
			return
		}
		copied = t.q.Copied(b.Data)
	}
	t.park(b, copied)
	if t.e.stall.seen.Load() {
		t.e.stall.blame(t)
	}
}

// receive gives b to the state machine; see transport.QP.Receive.
func (t *task) receive(b *transport.Burst) (taken bool) {
	if b.Type == ib.UD && !t.q.MayHear(&b.SGID) {
		return true
	}
	t.q.Offer()
	if !t.q.Transport().Receive(t.e.clock.now, b, t.q.Env()) {
		return false
	}
	t.q.Taken()
	return true
}

// received updates the loop's records after t has taken b.
func (t *task) received(b *transport.Burst) {
	m := t.q.Transport()
	t.changed()
	if m.RunPending() || m.RespondPending() {
		t.schedule()
	}
	if b.Kind == transport.KindAck && m.WaitsForReceiver() {
		t.e.local.starved.add(t)
	}
}

// deliverReplies brings acknowledgements to their requesters.
func (l *local) deliverReplies() {
	for l.replies.Len() > 0 {
		p := l.replies.Pop()
		l.reply = *p
		p.to = nil
		if to := l.reply.to; !to.q.Gone() {
			to.deliver(&l.reply.b)
		}
	}
}
