package engine

// flights counts the bytes in flight to other hosts. Those of all queue pairs together must fit
// into a receiver's socket buffer, or fast senders make it overflow. Each queue pair keeps to a
// window of its own. Where many are busy at once, each has an equal share of the total.
type flights struct {
	busy  uint64 // queue pairs that have bytes in flight
	bytes uint64 // of all of them
	parts uint64 // loops that share the total, if several do; see steering.go
}

// countFlight updates the bytes that t has in flight.
func (t *task) countFlight() {
	now := uint64(0)
	if m := t.q.Transport(); m.Path().Remote && !t.q.Gone() {
		now = m.InFlight()
	}
	t.e.net.flights.set(t, now)
}

// set sets the bytes that t has in flight. Only set changes f and t.flight, also when a queue
// pair is destroyed, so f is always the sum over all queue pairs.
func (f *flights) set(t *task, now uint64) {
	before := t.flight
	if before == now {
		return
	}
	if before == 0 {
		f.busy++
	} else if now == 0 {
		f.busy--
	}
	f.bytes += now - before
	t.flight = now
}

// share is how many bytes t may have in flight; 0: no limit. A queue pair without any may always
// send a packet: its share is at least 1.
func (t *task) share() uint32 {
	most := uint64(t.e.opts.InFlight)
	if most == 0 || t.route.adapter != nil {
		return 0
	}
	f, mine := &t.e.net.flights, t.flight
	if f.parts > 1 {
		most = max(most/f.parts, 1)
	}
	busy := f.busy
	if mine == 0 {
		busy++
	}
	free := most - min(most, f.bytes)
	return uint32(max(min(most/busy, mine+free), 1))
}
