package engine

import "vrdma/internal/nic"

// A queue pair is starved when its peer, on this host, had no receive posted. Posting
// one rings no bell, and the timer in the RNR NAK is a guess; so while the loop is
// awake it looks at the peer's queue itself.

// starvedVisits bounds how many are looked at in one pass.
const starvedVisits = 16

// starve notes that q waits for its peer's receives.
func (e *Engine) starve(q *nic.QP) {
	if !q.Sched.Starved {
		q.Sched.Starved = true
		*e.starved.push() = q
	}
}

// feed lets those go on whose peer has posted.
func (e *Engine) feed() {
	for range min(e.starved.n, starvedVisits) {
		q := *e.starved.pop()
		t := q.Transport()
		peer := q.Sched.Peer
		switch {
		case q.Gone() || peer == nil || peer.Gone() || !t.WaitsForReceiver():
			q.Sched.Starved = false
		case peer.HasReceive():
			q.Sched.Starved = false
			t.ReceiverReady()
			e.schedule(q)
		default:
			*e.starved.push() = q
		}
	}
}
