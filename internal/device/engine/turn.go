package engine

import "vrdma.dev/vrdma/internal/ib"

// A turn is what a queue pair does when the scheduler has chosen it: it takes bursts from its
// inbox, acts on its deadline, sends requests and sends responses.

// schedule requests a turn for t.
func (t *task) schedule() { t.e.sched.enqueue(t) }

// turns gives queue pairs their turns: turnsPerPass of them, or fewer if they take long while
// others may be waiting.
func (e *loop) turns() {
	begin, most := e.clock.now, passTime
	if e.net.traffic.polled || e.long {
		most = longPassTime
	}
	if e.sched.nics.Limited() {
		e.events.prepare()
	}
	for i := 0; i < turnsPerPass && e.sched.waiting(); i++ {
		shared := len(e.bells.active) > 1 || e.sched.ready > 1
		t := e.sched.next(e.clock.now)
		if t == nil {
			continue
		}
		budget := turnBytes
		if shared {
			budget = e.sched.allowance(t)
		}
		limited := e.sched.nics.Limited()
		if limited {
			budget = e.sched.nics.Budget(&t.adapter.band.nic, budget, e.clock.now)
		}
		if !shared {
			if t.turn(budget) && !e.net.traffic.polled {
				return // it took long: another session may have rung
			}
			continue
		}
		all := t.turn(budget)
		if !e.sched.waiting() {
			return
		}
		before := e.clock.now
		e.clock.read()
		e.sched.charge(t, e.clock.now-before, all)
		if e.clock.now-begin >= most || limited && e.sched.nics.Prompt(e.clock.now) {
			return
		}
	}
}

// turn lets t move about budget bytes, and reports whether it would have moved more.
func (t *task) turn(budget int) (more bool) {
	s := &t.e.stall
	if s.seen.Load() {
		s.unexplained()
	}
	s.turn = t
	more = t.work(budget)
	if s.seen.Load() {
		s.blame(t)
	}
	s.turn = nil
	return more
}

// work is the turn itself.
func (t *task) work(budget int) (more bool) {
	e := t.e
	e.clock.worksFor(t.adapter)
	e.clock.turn = true
	q := t.q
	if q.Gone() {
		return false
	}
	if t.waitsForMove() {
		return false
	}
	m := q.Transport()
	if t.parked {
		t.offer()
		e.local.deliverReplies()
	}
	if m.Path().Remote && t.route.under != nil && !t.route.under.Ready() {
		t.schedule() // packets sent now would be lost
		return false
	}
	if d := m.Deadline(); d != 0 && d <= e.clock.now && !t.expire() {
		t.schedule()
		return false
	}
	if peer := t.fullPeer(); peer != nil && m.State() < ib.StateSQE {
		t.await(peer)
		return false
	}
	if e.faults != nil && e.faults.holds(t) {
		return false
	}
	sc, env := e.shared.Scratch(), q.Env()
	sc.Share, sc.Held, sc.HoldReads = t.share(), false, false
	if e.sched.nics.Gated() {
		var ok bool
		if budget, ok = e.sched.admit(t, budget, sc); !ok {
			return false
		}
	}
	switch m.State() {
	case ib.StateError, ib.StateSQE:
		m.Flush(e.clock.now, env)
		more = m.RunPending()
	default:
		more = m.Run(e.clock.now, budget, env)
	}
	e.local.deliverReplies()
	if m.RespondPending() && !q.Gone() {
		more = m.Respond(e.clock.now, budget, env) || more
		e.local.deliverReplies()
	}
	t.changed()
	if sc.HoldReads && sc.ReadHeld {
		e.sched.hold(t, t.adapter)
	}
	if sc.Held && !q.Gone() {
		// Its peer did not take one of its bursts.
		if peer := t.fullPeer(); peer != nil {
			t.await(peer)
		} else {
			more = true
		}
	}
	if more {
		t.schedule()
	}
	return more
}

// expire acts on the deadline of t, which has passed. It returns false if it is too early for
// that: packets that have arrived for t may not have been read.
func (t *task) expire() bool {
	e, m := t.e, t.q.Transport()
	if m.Path().Remote {
		drained := e.net.drain()
		e.clock.worksFor(t.adapter)
		if e.clock.turn = true; !drained {
			return false
		}
		if d := m.Deadline(); d == 0 || d > e.clock.now {
			return true
		}
	}
	if t.excused() {
		m.Excuse(e.clock.now)
	}
	m.Expire(e.clock.now, t.q.Env())
	e.local.deliverReplies()
	t.changed()
	return true
}

// changed updates the loop's records after the state machine of t has done something.
func (t *task) changed() {
	if t.q.Gone() {
		return
	}
	t.countFlight()
	if m := t.q.Transport(); m.State() == ib.StateError {
		t.q.NoteError()
		t.e.chores.startTick(t.e.clock.now)
		if m.RunPending() || t.parked {
			t.schedule() // there is more to flush, or an inbox to take bursts from
		}
		return
	}
	t.e.sched.armDeadline(t)
}

// startTick schedules the next visit of what rings no doorbell.
func (c *chores) startTick(now ib.Time) {
	if !c.ticking {
		c.ticking = true
		c.tick = now + tickEvery
	}
}

// visitTroubled handles what rings no doorbell: receives posted to queue pairs in the error
// state, and event channels that were full. It reports whether the next pass has to continue.
func (c *chores) visitTroubled(now ib.Time) bool {
	if c.shared.VisitTroubled(visitsPerPass) {
		return true
	}
	c.ticking = false
	if c.shared.Troubled() {
		c.startTick(now)
	}
	return false
}
