package engine

import (
	"vrdma.dev/vrdma/internal/ib"
)

const (
	// turnBytes is how many bytes a queue pair may move before others get a chance. While
	// others ring it may be less, see scheduler.allowance.
	turnBytes = 256 << 10
	// turnsPerPass is how many turns are taken between two looks at doorbells.
	turnsPerPass = 8
	// passTime is how long turns are taken then while other sessions ring or wait. It
	// is longPassTime where the network is polled, too, because a look costs more, and
	// before commands, because what was posted before them comes first.
	passTime     = ib.Time(1_500)
	longPassTime = ib.Time(10_000)
	// linger is how long the loop looks around before it lets others run: a
	// program that posts in a row needs no more than that between two doorbells. If
	// other hosts have spoken lately it is netLinger. While programs here and there talk
	// in turns it is none (see lingers): no answer comes that soon, and the program
	// that a packet was for should run.
	linger    = ib.Time(400)
	netLinger = ib.Time(1_000)
	// foreignSoon is for how long after a job for foreign memory was begun the loop yields at
	// once: most jobs are done by then.
	foreignSoon = ib.Time(100_000)
	// wakesEvery is after how many passes a busy loop asks who else woke up, and
	// wakesAfter is after how long.
	wakesEvery = 64
	wakesAfter = ib.Time(30_000)
	// tickEvery is how often errored queue pairs and full event channels are
	// visited: receives posted to a queue pair in error complete within 10 ms.
	tickEvery = ib.Time(4_000_000)
	// visitsPerPass is how many of them one pass visits.
	visitsPerPass = 16
)

// chores are what the loop does from time to time.
type chores struct {
	woken   ib.Time // when who woke was asked last
	tick    ib.Time // next visit of errored queue pairs and full channels
	ticking bool
	until   ib.Time // when a loop that sleeps wakes by itself; 0 is never
	owed    ib.Time // since when waiters are to be woken, see waiters.go; 0: none are
}

// loop runs until Stop.
func (e *Engine) loop() {
	idle := ib.Time(0) // since when nothing happened
	pass := uint32(0)
	for !e.cmds.stopping.Load() || e.cmds.pending.Load() {
		e.clock()
		if e.bells.short != (e.bells.fars > 0) {
			e.bells.slice()
		}
		if pass++; pass%wakesEvery == 0 || e.now-e.chores.woken > wakesAfter {
			e.pollWakes()
		}
		work := false
		if e.linesReady() || e.cmds.pending.Load() {
			n := e.cmds.inOnePass()
			e.wakeRung()
			e.longPass()
			e.takeCommands(n)
			e.serveLines()
			work = true
		}
		if e.contain(e.step) || work {
			idle = 0
			e.wakeWaiters(false)
			if e.net.traffic.spoke && e.net.traffic.word && !e.sched.waiting() {
				if e.ledger.of != nil {
					e.clock() // nobody pays for what others do meanwhile
				}
				e.giveWay()
			}
			continue
		}
		e.wakeWaiters(true)
		if idle == 0 {
			idle = e.now
		}
		if quiet := e.now - idle; quiet < e.patience() {
			switch {
			case quiet <= e.lingers():
			case e.now < e.bells.awaited && !e.net.traffic.mode(e.now).streams(): // giveWay knows what to do about those
				e.lookOut(quiet)
			default:
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
// in this one's way. Programs in virtual machines that ring again and again are waited for, too: see
// farPace.
func (e *Engine) patience() ib.Time {
	p := ib.Time(e.opts.Spin)
	if e.now < e.bells.awaited {
		p = max(p, farPace)
	}
	if e.net.traffic.mode(e.now).streams() {
		p = max(p, quietAfter)
	}
	return p
}

// lingers is how long the loop looks around before it yields; -1: it yields at once.
func (e *Engine) lingers() ib.Time {
	switch m := e.net.traffic.mode(e.now); {
	case m == silent && e.now-e.shared.ForeignBegun() < foreignSoon:
		return -1 // the thread may wait for this processor
	case m == silent:
		return linger
	case m.talks():
		return -1
	}
	return netLinger
}

// step is one pass: doorbells, timers, turns.
func (e *Engine) step() bool {
	work := e.bells.poll(e.now)
	if e.cmds.arrived.Load() {
		e.askAgain()
		work = true
	}
	if due := e.shared.ForeignDue(); due != 0 && due <= e.now {
		e.giveUp()
		work = true
	}
	if e.net.any() {
		work = e.pollPort() || work
	}
	if e.net.groups.ready.n > 0 {
		e.pollGroups()
		work = true
	}
	if due := e.sched.due(); due != 0 && due <= e.now {
		e.sched.wakeDue(e.now)
		e.letGo()
	}
	if e.sched.waiting() {
		e.turns()
		work = true
	}
	if e.shared.EventsKept() {
		e.sendEvents()
		work = true
	}
	if e.local.starved.n > 0 {
		e.feed()
	}
	if e.chores.ticking && e.now >= e.chores.tick && e.visitTroubled() {
		work = true
	}
	// What has come last may have made events that are kept: they are not slept upon.
	if e.manage() || e.sched.waiting() || e.shared.EventsKept() {
		work = true
	}
	if e.frames.waiting.Load() {
		e.takeFrames()
		work = true
	}
	if e.net.any() {
		if e.flushPort() {
			work = true
		}
		e.net.traffic.pass(e.net.moved(), e.now)
		e.place()
	}
	return work
}

// longPass is a pass before a command.
func (e *Engine) longPass() {
	e.long = true
	e.contain(e.step)
	e.long = false
}
