package engine

import (
	"vrdma/internal/nic"
	"vrdma/internal/transport"
)

// An acknowledgement for another host waits for the end of the pass: a later one makes it
// superfluous, and behind a request it leaves in the same call.

// acksOwed is how many queue pairs may owe one before all are sent.
const acksOwed = 64

// acks are those that wait.
type acks struct {
	n    int
	list [acksOwed]struct {
		from *nic.QP
		b    transport.Burst
	}
}

// owe keeps b, which from sends, and forgets the one it kept for from before. NAKs do not
// wait.
func (e *Engine) owe(from *nic.QP, b *transport.Burst) {
	a := &e.acks
	i := from.Sched.Ack
	if i == 0 {
		if a.n == acksOwed {
			e.pay()
		}
		a.n++
		i = a.n
		from.Sched.Ack = i
	}
	a.list[i-1].from, a.list[i-1].b = from, *b
}

// pay sends all that wait.
func (e *Engine) pay() {
	a := &e.acks
	for i := range a.n {
		w := &a.list[i]
		w.from.Sched.Ack = 0
		w.from = nil
		e.port.Send(&w.b)
	}
	a.n = 0
}
