package engine

import (
	"vrdma/internal/nic"
	"vrdma/internal/transport"
)

const (
	// turn is how many bytes a queue pair may move before others get a chance. While
	// others ring it may be less, see scheduler.allowance.
	turn = 256 << 10
	// round is how many turns are taken between two looks at doorbells.
	round = 8
	// passTime is how long turns are taken then while other sessions ring or wait. It
	// is longPass where the network is polled, too, because a look costs more, and
	// before commands, because what was posted before them comes first.
	passTime = transport.Time(1_500)
	longPass = transport.Time(10_000)
	// linger is how long the loop looks around before it lets others run: a
	// program that posts in a row needs no more than that between two doorbells.
	// For talk with other hosts that is too long: nothing comes from there within
	// it, and the program that a packet was for should run.
	linger = transport.Time(1_000)
	// wakesEvery is after how many passes a busy loop asks who else woke up, and
	// wakesAfter is after how long.
	wakesEvery = 64
	wakesAfter = transport.Time(30_000)
	// tickEvery is how often errored queue pairs and full event channels are
	// visited: receives posted to a queue pair in error complete within 10 ms.
	tickEvery = transport.Time(4_000_000)
	// visitsPerPass is how many of them one pass visits.
	visitsPerPass = 16
)

// loop runs until Stop.
func (e *Engine) loop() {
	idle := transport.Time(0) // since when nothing happened
	pass := uint32(0)
	for !e.stopping.Load() || e.pending.Load() {
		e.clock()
		if pass++; pass%wakesEvery == 0 || e.now-e.wakes > wakesAfter {
			e.pollWakes()
		}
		work := false
		if e.pending.Load() {
			// What a program posted before it made the command happens before
			// the command, as in the kernel, where posting is a system call.
			n := e.commandsNow()
			e.pollWakes()
			e.stepLong()
			e.takeCommands(n)
			work = true
		}
		if e.safely(e.step) || work {
			idle = 0
			if e.traffic.spoke && e.traffic.word && !e.sched.waiting() {
				e.giveWay()
			}
			continue
		}
		if idle == 0 {
			idle = e.now
		}
		if quiet := e.now - idle; quiet < e.patience() {
			if quiet > linger || e.traffic.mode(e.now).talks() {
				e.giveWay()
			}
			continue
		}
		e.sleep()
		idle = 0
	}
}

// patience is how long the loop looks around before it sleeps. In the midst of a stream with
// another host it takes its time: a processor that is left alone for a moment is given the
// next thread that waits for one, which may be the other half of the stream, and back again
// in this one's way.
func (e *Engine) patience() transport.Time {
	p := transport.Time(e.opts.Spin)
	if e.traffic.mode(e.now).streams() {
		p = max(p, quietAfter)
	}
	return p
}

// step is one pass: doorbells, timers, turns.
func (e *Engine) step() bool {
	work := e.poll()
	if e.arrived.Load() {
		e.askAgain()
		work = true
	}
	if due := e.nic.ForeignDue(); due != 0 && due <= e.now {
		e.giveUp()
		work = true
	}
	if e.port != nil {
		work = e.pollPort() || work
	}
	if e.groupsReady.n > 0 {
		e.pollGroups()
		work = true
	}
	if due := e.sched.due(); due != 0 && due <= e.now {
		e.sched.wakeDue(e.now)
	}
	if e.sched.waiting() {
		e.turns()
		work = true
	}
	if e.starved.n > 0 {
		e.feed()
	}
	if e.ticking && e.now >= e.tick && e.visitTroubled() {
		work = true
	}
	if e.manage() || e.sched.waiting() {
		work = true
	}
	if e.port != nil {
		if e.flushPort() {
			work = true
		}
		e.traffic.pass(e.port.Moved(), e.now)
	}
	return work
}

// stepLong is a pass before a command.
func (e *Engine) stepLong() {
	e.long = true
	e.safely(e.step)
	e.long = false
}

// schedule has q given a turn.
func (e *Engine) schedule(q *nic.QP) {
	if f := flowOf(q); f != nil {
		e.sched.enqueue(f, q)
	}
}

// turns lets those work who want to: round turns, or fewer if they take long while others
// may be waiting.
func (e *Engine) turns() {
	begin, most := e.now, passTime
	if e.traffic.polled || e.long {
		most = longPass
	}
	for i := 0; i < round && e.sched.waiting(); i++ {
		shared := len(e.active) > 1 || e.sched.ready > 1
		q := e.sched.next(e.now)
		if q == nil {
			continue
		}
		if !shared {
			if e.turn(q, turn) && !e.traffic.polled {
				return // it took long: somebody may have rung
			}
			continue
		}
		all := e.turn(q, e.sched.allowance(q))
		if !e.sched.waiting() {
			return
		}
		before := e.now
		e.clock()
		e.sched.charge(q, e.now-before, all)
		if e.now-begin >= most {
			return
		}
	}
}

// turn lets q work and move about budget bytes, and reports whether it would have moved more.
func (e *Engine) turn(q *nic.QP, budget int) (more bool) {
	if q.Gone() {
		return false
	}
	t := q.Transport()
	if q.Sched.Parked {
		e.current = q
		e.offer(q)
		e.deliver()
	}
	if t.Path().Remote && !e.port.Ready() {
		e.schedule(q) // what it sends would be lost
		return false
	}
	if d := t.Deadline(); d != 0 && d <= e.now && !e.expire(q) {
		e.schedule(q)
		return false
	}
	if peer := parkedPeer(q); peer != nil && t.State() < transport.SQE {
		e.awaits(q, peer)
		return false
	}
	sc := q.Scratch()
	sc.Share, sc.Held = e.share(q), false
	e.current = q
	switch t.State() {
	case transport.Error, transport.SQE:
		t.Flush(e.now, q)
		more = t.RunPending()
	default:
		more = t.Run(e.now, budget, q)
	}
	e.deliver()
	if t.RespondPending() && !q.Gone() {
		more = t.Respond(e.now, budget, q) || more
		e.deliver()
	}
	e.settle(q)
	if sc.Held && !q.Gone() {
		// A burst of it was not taken.
		if peer := parkedPeer(q); peer != nil {
			e.awaits(q, peer)
		} else {
			more = true
		}
	}
	if more {
		e.schedule(q)
	}
	return more
}

// expire acts on q's deadline, which has passed, or reports that it is too early: what has
// arrived for q may not have been read.
func (e *Engine) expire(q *nic.QP) bool {
	t := q.Transport()
	if t.Path().Remote {
		if !e.hear() {
			return false
		}
		if d := t.Deadline(); d == 0 || d > e.now {
			return true
		}
	}
	e.current = q
	if excused(q) {
		t.Excuse(e.now)
	}
	t.Expire(e.now, q)
	e.deliver()
	e.settle(q)
	return true
}

// settle notes what a change in q means for the loop.
func (e *Engine) settle(q *nic.QP) {
	if q.Gone() {
		return
	}
	e.count(q)
	if t := q.Transport(); t.State() == transport.Error {
		q.Settle()
		e.startTick()
		if t.RunPending() || q.Sched.Parked {
			e.schedule(q) // more to flush than is flushed at once, or an inbox that is taken now
		}
		return
	}
	e.arm(q)
}

// startTick has visitTroubled called soon.
func (e *Engine) startTick() {
	if !e.ticking {
		e.ticking = true
		e.tick = e.now + tickEvery
	}
}

// visitTroubled looks after what rings no bell: receives posted to queue pairs in
// the error state, and event channels that were full. It reports whether it goes on in the
// next pass.
func (e *Engine) visitTroubled() bool {
	if e.nic.VisitTroubled(visitsPerPass) {
		return true
	}
	e.ticking = false
	if e.nic.Troubled() {
		e.startTick()
	}
	return false
}
