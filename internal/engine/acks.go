package engine

import (
	"vrdma/internal/nic"
	"vrdma/internal/transport"
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
// Whether a queue pair's program answers soon is learnt from what it did last.

const (
	// acksOwed is how many queue pairs may owe one before all are sent.
	acksOwed = 64
	// ackWait is how long one may wait for an answer.
	ackWait = transport.Time(20_000)
)

// psnMask is the range of packet sequence numbers.
const psnMask = 1<<24 - 1

// acks are those that wait.
type acks struct {
	n     int
	now   bool           // one of them is not to wait beyond this pass
	since transport.Time // when the first was due
	list  [acksOwed]struct {
		from *nic.QP
		b    transport.Burst
	}
}

// owe keeps b, which from sends, and forgets the one it kept for from before, unless that
// acknowledges more: the answer to a duplicate may. NAKs do not wait.
func (e *Engine) owe(from *nic.QP, b *transport.Burst) {
	a := &e.acks
	i := from.Sched.Ack
	if i == 0 {
		if a.n == acksOwed {
			e.pay()
		}
		if a.n == 0 {
			a.since, a.now = e.now, false
		}
		a.n++
		i = a.n
		from.Sched.Ack = i
	} else if forward := (b.PSN - a.list[i-1].b.PSN) & psnMask; forward > psnMask/2 {
		return
	}
	from.Sched.AckAt = e.now
	// A WRITE tells nobody, see talkBytes in traffic.go.
	recvs := from.Transport().Counters().RDMARecvs
	a.now = a.now || e.opts.NoAckWait || !from.Sched.Answers || recvs == from.Sched.Recvs
	from.Sched.Recvs = recvs
	a.list[i-1].from, a.list[i-1].b = from, *b
}

// answered notes that from sends a request after it was sent one.
func (e *Engine) answered(from *nic.QP) {
	from.Sched.Answers = e.now-from.Sched.AckAt < ackWait
	from.Sched.AckAt = 0
}

// acksDue reports whether those that wait have waited long enough. What leaves anyway takes
// them along.
func (e *Engine) acksDue() bool {
	a := &e.acks
	return a.n > 0 && (a.now || e.port.Pending() || e.now-a.since >= ackWait)
}

// pay sends all that wait.
func (e *Engine) pay() {
	a := &e.acks
	for i := range a.n {
		w := &a.list[i]
		s := &w.from.Sched
		s.Ack = 0
		if s.AckAt != 0 && e.now-s.AckAt >= ackWait {
			s.Answers = false
		}
		w.from = nil
		e.port.Send(&w.b) // what cannot be sent is lost
	}
	a.n = 0
}
