package engine

import "vrdma/internal/nic"

// A queue pair is starved when its peer, on this host, had no receive posted. Posting
// one rings no bell, and the timer in the RNR NAK is a guess; so while the loop is
// awake it looks at the peer's queue itself. Looks go round the sessions, like turns.
type starved struct {
	flows queue[*flow] // those that have starved queue pairs
	n     int          // queue pairs, of all
}

// starvedVisits bounds how many are looked at in one pass. A look is a miss in the cache.
const starvedVisits = 2

// starve notes that q waits for its peer's receives.
func (e *Engine) starve(q *nic.QP) {
	f := flowOf(q)
	if f == nil || q.Sched.Starved {
		return
	}
	q.Sched.Starved = true
	*f.starved.push() = q
	e.starved.n++
	e.hunger(f)
}

func (e *Engine) hunger(f *flow) {
	if !f.hungry {
		f.hungry = true
		*e.starved.flows.push() = f
	}
}

// feed lets those go on whose peer has posted.
func (e *Engine) feed() {
	for range min(e.starved.n, starvedVisits) {
		f := *e.starved.flows.pop()
		q := *f.starved.pop()
		e.starved.n--
		q.Sched.Starved = false
		if f.hungry = false; f.starved.n > 0 {
			e.hunger(f)
		}
		if e.waitsStill(q) { // which looks at a client's memory, and may not return
			e.starve(q)
		}
	}
}

// waitsStill lets q go on if its peer has posted, and reports whether it has to wait longer.
func (e *Engine) waitsStill(q *nic.QP) bool {
	t := q.Transport()
	peer := q.Sched.Peer
	switch {
	case q.Gone() || peer == nil || peer.Gone() || !t.WaitsForReceiver():
		return false
	case peer.HasReceive():
		t.ReceiverReady()
		e.schedule(q)
		return false
	}
	return true
}
