package engine

import (
	"net/netip"

	"vrdma.dev/vrdma/internal/device/transport"
	"vrdma.dev/vrdma/internal/ib"
)

// An ACK for another host waits for the end of the pass: a later ACK of the same queue pair
// replaces it, and behind a request it leaves in the same system call.
//
// Where two programs talk in turns, it waits a little longer, for the answer:
//
//	arrives   request ─┐                           a system call and the network stack are
//	program            └─▶ completion … posts ─┐   most of the cost of a message: one call
//	leaves                                     └─▶ request, ACK   instead of two
//
// The loop learns from the last messages whether a queue pair's program answers soon. It does not
// wait for a program that sleeps on events. ib_send_lat -e has one channel for the completions of
// its sends and its receives, and hangs if the answer arrives before the ACK.

const (
	// maxAcks is how many ACKs may wait before all are sent.
	maxAcks = 64
	// ackWait is how long an ACK may wait for an answer.
	ackWait = ib.Time(20_000)
)

// acks are the ACKs for other hosts that wait, at most one for each queue pair.
type acks struct {
	n     int
	now   bool    // one of them does not wait beyond this pass
	since ib.Time // when the first was queued
	list  [maxAcks]struct {
		from     *task
		under    *attached
		network  ib.NetworkID
		src, dst netip.Addr
		b        transport.Burst
	}
}

// queueAck keeps b, an ACK that from sends. It replaces an earlier ACK of from, unless that one
// acknowledges more: the answer to a duplicate may acknowledge less. NAKs do not wait.
func (n *network) queueAck(from *task, r *route, b *transport.Burst) {
	if n.sched.nics.Gated() && n.sched.withhold(from, r, b) {
		return
	}
	a, now := &n.acks, n.clock.now
	i := from.ack
	if i == 0 {
		if a.n == maxAcks {
			a.flush(now)
		}
		if a.n == 0 {
			a.since, a.now = now, false
		}
		a.n++
		i = a.n
		from.ack = i
	} else if forward := (b.PSN - a.list[i-1].b.PSN) & ib.PSNMask; forward > ib.PSNMask/2 {
		return
	}
	from.ackAt = now
	// A WRITE completes no receive: its program is not told, see talkBytes in traffic.go.
	recvs := from.q.Transport().Counters().RDMARecvs
	a.now = a.now || n.opts.NoAckWait || !from.answers || recvs == from.recvs || from.q.Rang()
	from.recvs = recvs
	w := &a.list[i-1]
	w.from, w.under, w.network, w.src, w.dst, w.b = from, r.under, r.network, r.from, r.to, *b
}

// answered notes that t sends a request after it has received one.
func (t *task) answered(now ib.Time) {
	t.answers = now-t.ackAt < ackWait
	t.ackAt = 0
}

// acksDue reports whether to send the ACKs that wait. They also leave with other packets.
func (n *network) acksDue() bool {
	a := &n.acks
	return a.n > 0 && (a.now || n.pending() || n.clock.now-a.since >= ackWait)
}

// flush sends all ACKs that wait.
func (a *acks) flush(now ib.Time) {
	for i := range a.n {
		w := &a.list[i]
		t := w.from
		t.ack = 0
		if t.ackAt != 0 && now-t.ackAt >= ackWait {
			t.answers = false
		}
		w.from = nil
		w.under.Send(w.network, w.src, w.dst, &w.b)
	}
	a.n = 0
}
