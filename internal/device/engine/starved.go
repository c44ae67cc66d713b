package engine

// A queue pair is starved when its peer, on this host, had no receive posted. Posting
// one rings no bell, and the timer in the RNR NAK is a guess; so while the loop is
// awake it looks at the peer's queue itself. Looks go round the sessions, like turns.
type starved struct {
	flows queue[*flow] // those that have starved queue pairs
	n     int          // queue pairs, of all
}

// starvedLooks bounds how many are looked at in one pass. A look is a miss in the cache.
const starvedLooks = 2

// starve notes that t waits for its peer's receives.
func (e *Engine) starve(t *task) {
	f := &t.c.flow
	if f.gone || t.starved {
		return
	}
	t.starved = true
	*f.starved.push() = t
	s := &e.local.starved
	s.n++
	s.hunger(f)
}

func (s *starved) hunger(f *flow) {
	if !f.hungry {
		f.hungry = true
		*s.flows.push() = f
	}
}

// feed lets those go on whose peer has posted.
func (e *Engine) feed() {
	s := &e.local.starved
	for range min(s.n, starvedLooks) {
		f := *s.flows.pop()
		t := *f.starved.pop()
		s.n--
		t.starved = false
		if f.hungry = false; f.starved.n > 0 {
			s.hunger(f)
		}
		if e.waitsStill(t) { // which looks at a client's memory, and may not return
			e.starve(t)
		}
	}
}

// waitsStill lets t go on if its peer has posted, and reports whether it has to wait longer.
func (e *Engine) waitsStill(t *task) bool {
	m := t.q.Transport()
	peer := t.peer
	switch {
	case t.q.Gone() || peer == nil || peer.q.Gone() || !m.WaitsForReceiver():
		return false
	case peer.q.HasReceive():
		m.ReceiverReady()
		e.schedule(t)
		return false
	}
	return true
}
