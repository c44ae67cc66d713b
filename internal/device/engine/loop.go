package engine

import (
	"vrdma.dev/vrdma/internal/device/nic"
	"vrdma.dev/vrdma/internal/ib"
)

const (
	// turnBytes is how many bytes a queue pair may move in a turn. While other sessions ring it
	// may be less, see scheduler.allowance.
	turnBytes = 256 << 10
	// turnsPerPass is how many turns there are between two looks at doorbells.
	turnsPerPass = 8
	// passTime bounds the turns of a pass while other sessions ring or wait. It is longPassTime
	// where the loop polls the network, too, because each look costs more. It is also
	// longPassTime before commands, because work posted before them comes first.
	passTime     = ib.Time(1_500)
	longPassTime = ib.Time(10_000)
	// linger is how long an idle loop polls before it yields: a program that posts requests in a
	// row needs no more between two doorbells. It is netLinger after traffic with other hosts.
	// There is none while programs here and on another host talk in turns (see
	// processor.lingers): no answer comes that soon, and the program that received the packet
	// should run.
	linger    = ib.Time(400)
	netLinger = ib.Time(1_000)
	// foreignSoon is for how long after the start of a job for foreign memory the loop yields
	// at once: most jobs are done by then.
	foreignSoon = ib.Time(100_000)
	// wakesEvery and wakesAfter are the number of passes and the time after which a busy loop
	// asks the kernel which descriptors are readable.
	wakesEvery = 64
	wakesAfter = ib.Time(30_000)
	// tickEvery is how often the loop visits queue pairs in error and full event channels:
	// receives posted to a queue pair in error complete within 10 ms.
	tickEvery = ib.Time(4_000_000)
	// visitsPerPass is how many of them one pass visits.
	visitsPerPass = 16
)

// chores is periodic work of the loop, and when it is due.
type chores struct {
	woken   ib.Time // when the loop last asked which descriptors are readable
	tick    ib.Time // next visit of queue pairs in error and full event channels
	ticking bool
	until   ib.Time // when a sleeping loop wakes by itself; 0 is never
	shared  *nic.Loop
}

// work runs until Stop.
func (e *loop) work() {
	idle := ib.Time(0) // since when nothing happened
	pass := uint32(0)
	for !e.cmds.stopping.Load() || e.cmds.pending.Load() {
		if e.cmds.wanted.Load() {
			e.standAside()
		}
		e.clock.read()
		if e.bells.short != (e.bells.fars > 0) {
			e.bells.slice()
		}
		if pass++; pass%wakesEvery == 0 || e.clock.now-e.chores.woken > wakesAfter {
			e.pollWakes()
		}
		work := false
		if !e.handlers.poll(e.clock.now) && !e.cmds.pending.Load() {
			// There are no commands.
		} else if e.number == 0 && !e.loops.mayHold(e.clock.now) {
			work = true // soon
		} else {
			n := e.cmds.inOnePass()
			e.wakeRung()
			e.longPass()
			if e.number > 0 {
				e.cmds.run(n, &e.clock)
			} else {
				e.loops.holdOthers()
				e.cmds.run(n, &e.clock)
				e.serveHandlers()
				e.loops.releaseOthers()
			}
			work = true
		}
		if e.contain(e.step) || work {
			idle = 0
			e.wakeWaiters(false)
			if e.net.traffic.spoke && e.net.traffic.word && !e.sched.waiting() {
				if e.clock.of != nil {
					e.clock.read() // the time that others run is charged to no NIC
				}
				e.proc.giveWay()
			}
			continue
		}
		e.wakeWaiters(true)
		if idle == 0 {
			idle = e.clock.now
		}
		if quiet := e.clock.now - idle; quiet < e.proc.patience() {
			switch {
			case quiet <= e.proc.lingers():
			case e.clock.now < e.bells.awaited && !e.net.traffic.mode(e.clock.now).streams(): // giveWay handles streams
				e.proc.awaitFar(quiet)
			default:
				e.proc.giveWay()
			}
			continue
		}
		e.sleep()
		idle = 0
	}
}

// step is one pass: doorbells, packets, timers, turns.
func (e *loop) step() bool {
	work := e.bells.poll(e.clock.now)
	if e.cmds.arrived.Load() {
		e.local.retryForeign(&e.cmds.arrived)
		work = true
	}
	if due := e.shared.ForeignDue(); due != 0 && due <= e.clock.now {
		e.local.expireForeign(e.clock.now)
		work = true
	}
	if e.net.any() {
		work = e.net.pollPort() || work
	}
	if e.inward.due() {
		e.takeCrossed()
		work = true
	}
	if e.net.groups.ready.Len() > 0 {
		e.net.pollGroups()
		work = true
	}
	if due := e.sched.due(); due != 0 && due <= e.clock.now {
		e.sched.wakeDue(e.clock.now)
		e.sched.releaseHeld()
	}
	if e.sched.waiting() {
		e.turns()
		work = true
	}
	if e.faults != nil && e.faults.run() {
		work = true
	}
	if e.shared.EventsKept() {
		e.events.send()
		work = true
	}
	if e.local.starved.n > 0 {
		e.local.starved.retry()
	}
	if e.chores.ticking && e.clock.now >= e.chores.tick && e.chores.visitTroubled(e.clock.now) {
		work = true
	}
	// The last packets may have caused events that are kept: the loop must not sleep on them.
	if e.mgmt.run() || e.sched.waiting() || e.shared.EventsKept() {
		work = true
	}
	if e.frames.waiting.Load() {
		e.frames.send(e.net.overlay)
		e.net.traffic.wake(e.clock.now)
		work = true
	}
	if e.net.any() {
		if e.net.flushPort() {
			work = true
		}
		e.net.traffic.pass(e.net.moved(), e.clock.now)
		e.proc.chooseCPU()
	}
	return work
}

// longPass is the pass before a command.
func (e *loop) longPass() {
	e.long = true
	e.contain(e.step)
	e.long = false
}
