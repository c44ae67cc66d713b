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
	t, s := q.Transport(), &q.Sched
	now := uint64(0)
	if t.Path().Remote {
		now = t.InFlight()
	}
	f := &e.flights
	if now > 0 && s.Flight == 0 {
		f.busy++
	} else if now == 0 && s.Flight > 0 {
		f.busy--
	}
	f.bytes += now - s.Flight
	s.Flight = now
}

// landed notes that nothing of q, which is gone, is in flight any more.
func (e *Engine) landed(q *nic.QP) {
	if s := &q.Sched; s.Flight > 0 {
		e.flights.busy--
		e.flights.bytes -= s.Flight
		s.Flight = 0
	}
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
