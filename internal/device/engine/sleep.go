package engine

import (
	"vrdma.dev/vrdma/internal/ib"
)

// sleep arms every active doorbell page and waits for a doorbell, a packet, a command or the next
// deadline.
func (e *loop) sleep() {
	if e.net.acks.n > 0 {
		e.net.acks.flush(e.clock.now)
		e.net.flushPort()
		return
	}
	if !e.handlers.shutMailboxes() || !e.bells.restAll() {
		return
	}
	if e.net.tap != nil {
		e.net.tap.Flush()
	}
	if e.shared.Troubled() {
		e.chores.startTick(e.clock.now)
	}
	e.cmds.sleeping.Store(true)
	if e.cmds.pending.Load() || e.cmds.stopping.Load() || e.cmds.arrived.Load() || e.frames.waiting.Load() || e.inward.due() {
		e.cmds.sleeping.Store(false)
		return
	}
	e.busy.Store(int64(e.clock.busy))
	n := e.away(e.nextDeadline())
	e.cmds.sleeping.Store(false)
	e.stall.look()
	e.stall.rouse()
	e.clock.read()
	e.chores.woken = e.clock.now
	e.bells.tellProcessor(currentCPU())
	e.collect(n)
	e.bells.activatePrompt(e.clock.now)
}

// collect handles the first n of poller.events.
func (e *loop) collect(n int) {
	for _, ev := range e.poller.events[:n] {
		if b := e.bells.of[ev.Fd]; b != nil {
			e.bells.activate(b, e.clock.now)
		} else if ev.Fd == int32(e.handlers.epfd) {
			e.handlers.told = true
		} else if e.net.woken(ev.Fd, e.clock.now) {
			e.net.traffic.wake(e.clock.now)
		} else {
			e.net.groups.readable(ev.Fd)
		}
	}
}

// nextDeadline is when a sleeping loop has to wake by itself; zero is never.
func (e *loop) nextDeadline() ib.Time {
	d := e.sched.due()
	if e.chores.ticking {
		d = sooner(d, e.chores.tick)
	}
	if e.faults != nil {
		d = sooner(d, e.faults.due())
	}
	return sooner(sooner(d, e.shared.ForeignDue()), sooner(e.mgmt.timers.due(), e.net.peersDue()))
}

// sooner is the earlier of two times; zero is never.
func sooner(a, b ib.Time) ib.Time {
	if a == 0 || b != 0 && b < a {
		return b
	}
	return a
}

// pollWakes collects, without waiting, the descriptors that became readable while the loop was
// busy.
func (e *loop) pollWakes() {
	e.stall.look()
	e.stall.rouse()
	e.busy.Store(int64(e.clock.busy))
	e.bells.tellProcessor(currentCPU())
	e.chores.woken = e.clock.now
	if n, err := epollNap(e.poller.epfd, e.poller.events[:], 0); err == nil {
		e.collect(n)
	}
}
