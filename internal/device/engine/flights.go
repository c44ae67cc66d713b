package engine

// What all queue pairs together have on their way to other hosts must fit into a receiver's
// socket buffer, or fast senders make it overflow. Each keeps to a window of its own; where
// many are busy at once, each has an equal share of what all may have.
type flights struct {
	busy  uint64 // queue pairs that have something in flight
	bytes uint64 // of all of them
}

// count takes note of what t has in flight now.
func (e *Engine) count(t *task) {
	now := uint64(0)
	if m := t.q.Transport(); m.Path().Remote && !t.q.Gone() {
		now = m.InFlight()
	}
	e.net.flights.set(t, now)
}

// set makes what t has in flight now. Nothing else changes these numbers or t's own: they
// are always the sum over all queue pairs, and one that is destroyed goes through here, too.
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

// share is how many bytes t may have in flight; 0: as many as it likes. Who has none may
// always send a packet, for which 1 stands.
func (e *Engine) share(t *task) uint32 {
	most := uint64(e.opts.InFlight)
	if most == 0 || t.route.card != nil {
		return 0
	}
	f, mine := &e.net.flights, t.flight
	busy := f.busy
	if mine == 0 {
		busy++
	}
	free := most - min(most, f.bytes)
	return uint32(max(min(most/busy, mine+free), 1))
}
