package engine

import "vrdma/internal/nic"

// What all queue pairs together have on their way to other hosts must fit into a receiver's
// socket buffer, or fast senders make it overflow. Each keeps to a window of its own; where
// many are busy at once, each has an equal share of what all may have.
type flights struct {
	busy  uint64 // queue pairs that have something in flight
	bytes uint64 // of all of them
}

// count takes note of what q has in flight now.
func (e *Engine) count(q *nic.QP) {
	now := uint64(0)
	if t := q.Transport(); t.Path().Remote && !q.Gone() {
		now = t.InFlight()
	}
	e.flights.set(q, now)
}

// set makes what q has in flight now. Nothing else changes these numbers or q's own: they
// are always the sum over all queue pairs, and one that is destroyed goes through here, too.
func (f *flights) set(q *nic.QP, now uint64) {
	before := q.Sched.Flight
	if before == now {
		return
	}
	if before == 0 {
		f.busy++
	} else if now == 0 {
		f.busy--
	}
	f.bytes += now - before
	q.Sched.Flight = now
}

// share is how many bytes q may have in flight; 0: as many as it likes. Who has none may
// always send a packet, for which 1 stands.
func (e *Engine) share(q *nic.QP) uint32 {
	most := uint64(e.opts.InFlight)
	if most == 0 || q.Sched.Route == nic.RouteLocal {
		return 0
	}
	f, mine := &e.flights, q.Sched.Flight
	busy := f.busy
	if mine == 0 {
		busy++
	}
	free := most - min(most, f.bytes)
	return uint32(max(min(most/busy, mine+free), 1))
}
