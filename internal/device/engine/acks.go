package engine

import (
	"net/netip"

	"vrdma.dev/vrdma/internal/device/transport"
	"vrdma.dev/vrdma/internal/ib"
)

// An acknowledgement for another host waits for the end of the pass: a later one makes it
// superfluous, and behind a request it leaves in the same call.
//
// Where two programs talk in turns, it waits a little longer, for the answer:
//
//	arrives   request ─┐                           a call to the kernel and the network
//	program            └─▶ completion … posts ─┐   stack is most of what a message costs,
//	leaves                                     └─▶ request, ACK   and it is one, not two
//
// Whether a queue pair's program answers soon is learnt from what it did last. For one that
// sleeps on events it does not wait. ib_send_lat -e has one channel for the completions of its
// sends and its receives, and hangs if the answer arrives before the ACK does.

const (
	// acksOwed is how many queue pairs may owe one before all are sent.
	acksOwed = 64
	// ackWait is how long one may wait for an answer.
	ackWait = ib.Time(20_000)
)

// acks are those that wait.
type acks struct {
	n     int
	now   bool    // one of them is not to wait beyond this pass
	since ib.Time // when the first was due
	list  [acksOwed]struct {
		from     *task
		under    *attached
		network  ib.NetworkID
		src, dst netip.Addr
		b        transport.Burst
	}
}

// owe keeps b, which from sends, and forgets the one it kept for from before, unless that
// acknowledges more: the answer to a duplicate may. NAKs do not wait.
func (e *Engine) owe(from *task, r *route, b *transport.Burst) {
	if e.sched.nics.Gated() && e.withhold(from, r, b) {
		return
	}
	a := &e.net.acks
	i := from.ack
	if i == 0 {
		if a.n == acksOwed {
			e.pay()
		}
		if a.n == 0 {
			a.since, a.now = e.now, false
		}
		a.n++
		i = a.n
		from.ack = i
	} else if forward := (b.PSN - a.list[i-1].b.PSN) & ib.PSNMask; forward > ib.PSNMask/2 {
		return
	}
	from.ackAt = e.now
	// A WRITE tells nobody, see talkBytes in traffic.go.
	recvs := from.q.Transport().Counters().RDMARecvs
	a.now = a.now || e.opts.NoAckWait || !from.answers || recvs == from.recvs || from.q.Rang()
	from.recvs = recvs
	w := &a.list[i-1]
	w.from, w.under, w.network, w.src, w.dst, w.b = from, r.under, r.network, r.from, r.to, *b
}

// answered notes that from sends a request after it was sent one.
func (e *Engine) answered(from *task) {
	from.answers = e.now-from.ackAt < ackWait
	from.ackAt = 0
}

// acksDue reports whether those that wait have waited long enough. What leaves anyway takes
// them along.
func (e *Engine) acksDue() bool {
	a := &e.net.acks
	return a.n > 0 && (a.now || e.net.pending() || e.now-a.since >= ackWait)
}

// pay sends all that wait.
func (e *Engine) pay() {
	a := &e.net.acks
	for i := range a.n {
		w := &a.list[i]
		t := w.from
		t.ack = 0
		if t.ackAt != 0 && e.now-t.ackAt >= ackWait {
			t.answers = false
		}
		w.from = nil
		w.under.Send(w.network, w.src, w.dst, &w.b)
	}
	a.n = 0
}
