package engine

import (
	"vrdma/internal/nic"
	"vrdma/internal/transport"
)

const (
	// turn is how many bytes a queue pair may move before others get a chance.
	turn = 256 << 10
	// round is how many turns are taken between two looks at doorbells.
	round = 8
	// linger is how long the loop looks around before it lets others run: a
	// program that posts in a row needs no more than that between two doorbells.
	// For talk with other hosts that is too long: nothing comes from there within
	// it, and the program that a packet was for should run.
	linger = transport.Time(1_000)
	// wakesEvery is after how many passes a busy loop asks who else woke up.
	wakesEvery = 64
	// tickEvery is how often errored queue pairs and full event channels are
	// visited: receives posted to a queue pair in error complete within 10 ms.
	tickEvery = transport.Time(4_000_000)
)

// loop runs until Stop.
func (e *Engine) loop() {
	idle := transport.Time(0) // since when nothing happened
	pass := uint32(0)
	for !e.stopping.Load() || e.pending.Load() {
		e.clock()
		if pass++; pass%wakesEvery == 0 {
			e.pollWakes()
		}
		work := false
		if e.pending.Load() {
			// What a program posted before it made the command happens before
			// the command, as in the kernel, where posting is a system call.
			e.pollWakes()
			e.safely(e.step)
			work = e.takeCommands()
		}
		if e.safely(e.step) || work {
			idle = 0
			if e.portSpoke && e.portTalk && e.run.n == 0 {
				e.giveWay()
			}
			continue
		}
		if idle == 0 {
			idle = e.now
		}
		if quiet := e.now - idle; quiet < e.patience() {
			if quiet > linger || e.portActive && e.portTalk {
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
	if e.streaming() {
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
	if e.starved.n > 0 {
		e.feed()
	}
	if due := e.timers.due(); due != 0 && due <= e.now {
		e.hear()
		work = e.expire() || work
	}
	for i := 0; i < round && e.run.n > 0; i++ {
		e.turn(*e.run.pop())
		work = true
	}
	if e.ticking && e.now >= e.tick {
		e.visitTroubled()
	}
	if e.manage() {
		work = true
	}
	if e.port != nil {
		if e.flushPort() {
			work = true
		}
		m := e.port.Moved()
		if e.portSpoke = m != e.portMoved; e.portSpoke {
			little := m-e.portMoved <= talkBytes
			e.portTalk = e.told && little
			if !little {
				e.portBulk = e.now
			}
			e.portMoved = m
		}
	}
	return work
}

// schedule puts q into the run queue, once.
func (e *Engine) schedule(q *nic.QP) {
	if !q.Sched.Queued {
		q.Sched.Queued = true
		*e.run.push() = q
	}
}

// turn lets q work.
func (e *Engine) turn(q *nic.QP) {
	q.Sched.Queued = false
	if q.Gone() {
		e.landed(q)
		e.unpark(q)
		return
	}
	t := q.Transport()
	if q.Sched.Parked {
		e.current = q
		e.offer(q)
		e.deliver()
	}
	if t.Path().Remote && !e.port.Ready() {
		e.schedule(q) // what it sends would be lost
		return
	}
	if peer := parkedPeer(q); peer != nil && t.State() < transport.SQE {
		e.awaits(q, peer)
		return
	}
	sc := q.Scratch()
	sc.Share, sc.Held = e.share(q), false
	e.current = q
	var more bool
	switch t.State() {
	case transport.Error, transport.SQE:
		t.Flush(e.now, q)
	default:
		more = t.Run(e.now, turn, q)
	}
	e.deliver()
	if t.RespondPending() && !q.Gone() {
		more = t.Respond(e.now, turn, q) || more
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
		if q.Sched.Parked {
			e.schedule(q) // it takes everything now
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
// the error state, and event channels that were full.
func (e *Engine) visitTroubled() {
	e.ticking = false
	errored := e.nic.FlushErrored()
	if e.nic.Pump() || errored {
		e.startTick()
	}
}
