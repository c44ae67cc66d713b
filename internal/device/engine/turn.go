package engine

import "vrdma.dev/vrdma/internal/ib"

// A turn is what a queue pair does when the scheduler has chosen it: it takes what waits in
// its inbox, acts on its deadline, sends, answers.

// schedule has t given a turn.
func (e *Engine) schedule(t *task) { e.sched.enqueue(t) }

// turns lets those work who want to: turnsPerPass turns, or fewer if they take long while others
// may be waiting.
func (e *Engine) turns() {
	begin, most := e.now, passTime
	if e.net.traffic.polled || e.long {
		most = longPassTime
	}
	if e.sched.nics.Limited() {
		e.promptly()
	}
	for i := 0; i < turnsPerPass && e.sched.waiting(); i++ {
		shared := len(e.bells.active) > 1 || e.sched.ready > 1
		t := e.sched.next(e.now)
		if t == nil {
			continue
		}
		budget := turnBytes
		if shared {
			budget = e.sched.allowance(t)
		}
		limited := e.sched.nics.Limited()
		if limited {
			budget = e.sched.nics.Budget(&t.card.band.nic, budget, e.now)
		}
		if !shared {
			if e.turn(t, budget) && !e.net.traffic.polled {
				return // it took long: somebody may have rung
			}
			continue
		}
		all := e.turn(t, budget)
		if !e.sched.waiting() {
			return
		}
		before := e.now
		e.clock()
		e.sched.charge(t, e.now-before, all)
		if e.now-begin >= most || limited && e.sched.nics.Prompt(e.now) {
			return
		}
	}
}

// turn lets t work and move about budget bytes, and reports whether it would have moved more.
func (e *Engine) turn(t *task, budget int) (more bool) {
	if e.stall.seen.Load() {
		e.unexplained()
	}
	e.stall.turn = t
	more = e.work(t, budget)
	if e.stall.seen.Load() {
		e.stalled(t)
	}
	e.stall.turn = nil
	return more
}

// work is the turn itself.
func (e *Engine) work(t *task, budget int) (more bool) {
	e.worksFor(t.card)
	e.ledger.turn = true
	q := t.q
	if q.Gone() {
		return false
	}
	m := q.Transport()
	if t.parked {
		e.offer(t)
		e.deliverReplies()
	}
	if m.Path().Remote && t.route.under != nil && !t.route.under.Ready() {
		e.schedule(t) // what it sends would be lost
		return false
	}
	if d := m.Deadline(); d != 0 && d <= e.now && !e.expire(t) {
		e.schedule(t)
		return false
	}
	if peer := e.fullPeer(t); peer != nil && m.State() < ib.StateSQE {
		e.awaits(t, peer)
		return false
	}
	sc, env := e.shared.Scratch(), q.Env()
	sc.Share, sc.Held, sc.HoldReads = e.share(t), false, false
	if e.sched.nics.Gated() {
		var ok bool
		if budget, ok = e.admit(t, budget); !ok {
			return false
		}
	}
	switch m.State() {
	case ib.StateError, ib.StateSQE:
		m.Flush(e.now, env)
		more = m.RunPending()
	default:
		more = m.Run(e.now, budget, env)
	}
	e.deliverReplies()
	if m.RespondPending() && !q.Gone() {
		more = m.Respond(e.now, budget, env) || more
		e.deliverReplies()
	}
	e.changed(t)
	if sc.HoldReads && sc.ReadHeld {
		e.hold(t, t.card)
	}
	if sc.Held && !q.Gone() {
		// A burst of it was not taken.
		if peer := e.fullPeer(t); peer != nil {
			e.awaits(t, peer)
		} else {
			more = true
		}
	}
	if more {
		e.schedule(t)
	}
	return more
}

// expire acts on t's deadline, which has passed, or reports that it is too early: what has
// arrived for t may not have been read.
func (e *Engine) expire(t *task) bool {
	m := t.q.Transport()
	if m.Path().Remote {
		heard := e.hear()
		e.worksFor(t.card)
		if e.ledger.turn = true; !heard {
			return false
		}
		if d := m.Deadline(); d == 0 || d > e.now {
			return true
		}
	}
	if t.excused() {
		m.Excuse(e.now)
	}
	m.Expire(e.now, t.q.Env())
	e.deliverReplies()
	e.changed(t)
	return true
}

// changed notes what a change in t's queue pair means for the loop. It follows whatever the
// state machine has done.
func (e *Engine) changed(t *task) {
	if t.q.Gone() {
		return
	}
	e.count(t)
	if m := t.q.Transport(); m.State() == ib.StateError {
		t.q.NoteError()
		e.startTick()
		if m.RunPending() || t.parked {
			e.schedule(t) // more to flush than is flushed at once, or an inbox that is taken now
		}
		return
	}
	e.sched.armDeadline(t)
}

// startTick has visitTroubled called soon.
func (e *Engine) startTick() {
	if !e.chores.ticking {
		e.chores.ticking = true
		e.chores.tick = e.now + tickEvery
	}
}

// visitTroubled looks after what rings no bell: receives posted to queue pairs in
// the error state, and event channels that were full. It reports whether it goes on in the
// next pass.
func (e *Engine) visitTroubled() bool {
	if e.shared.VisitTroubled(visitsPerPass) {
		return true
	}
	e.chores.ticking = false
	if e.shared.Troubled() {
		e.startTick()
	}
	return false
}
