package engine

import (
	"vrdma.dev/vrdma/internal/ib"
)

// sleep arms every active session and waits for a doorbell, a command or the next
// deadline.
func (e *Engine) sleep() {
	if e.net.acks.n > 0 {
		e.pay()
		e.flushPort()
		return
	}
	if !e.shutBoxes() || !e.bells.restAll() {
		return
	}
	if e.net.tap != nil {
		e.net.tap.Flush()
	}
	if e.shared.Troubled() {
		e.startTick()
	}
	e.cmds.sleeping.Store(true)
	if e.cmds.pending.Load() || e.cmds.stopping.Load() || e.cmds.arrived.Load() || e.frames.waiting.Load() {
		e.cmds.sleeping.Store(false)
		return
	}
	n := e.away(e.nextDeadline())
	e.cmds.sleeping.Store(false)
	e.stall.look()
	e.clock()
	e.chores.woken = e.now
	e.bells.tellProcessor(processor())
	e.collect(n)
	e.bells.activatePrompt(e.now)
}

// collect sees to the first n of poller.events.
func (e *Engine) collect(n int) {
	for _, ev := range e.poller.events[:n] {
		if b := e.bells.of[ev.Fd]; b != nil {
			e.bells.activate(b, e.now)
		} else if ev.Fd == int32(e.lines.epfd) {
			e.lines.told = true
		} else if e.net.woken(ev.Fd, e.now) {
			e.net.traffic.wake(e.now)
		} else {
			e.net.groups.readable(ev.Fd)
		}
	}
}

// nextDeadline is when the loop has to look again by itself; zero is never.
func (e *Engine) nextDeadline() ib.Time {
	d := e.sched.due()
	if e.chores.ticking {
		d = sooner(d, e.chores.tick)
	}
	return sooner(sooner(d, e.shared.ForeignDue()), sooner(e.mgmt.timers.due(), e.net.peersDue()))
}

// sooner is the first of two times, of which zero is never.
func sooner(a, b ib.Time) ib.Time {
	if a == 0 || b != 0 && b < a {
		return b
	}
	return a
}

// wait blocks until a watched descriptor is readable, or for timeout nanoseconds unless
// that is negative, and returns how many are in poller.events. It touches nothing else
// that a stand-in does.
func (e *Engine) wait(timeout int64) int {
	// Most waits between two messages are short. Telling the Go scheduler about
	// them costs more than they last, so the first nap is taken behind its back;
	// a garbage collection that wants this thread waits at most that long.
	if timeout < 0 || timeout > nap {
		if n, err := epollNap(e.poller.epfd, e.poller.events[:], nap); n > 0 || err != nil {
			return n
		}
		if e.cmds.pending.Load() || e.frames.waiting.Load() {
			return 0
		}
		if timeout > 0 {
			timeout -= nap
		}
	}
	n, err := epollWait(e.poller.epfd, e.poller.events[:], timeout)
	if err != nil {
		return 0
	}
	return n
}

// nap is how long the loop may sleep without telling the Go scheduler.
const nap = 200_000

// pollWakes collects, without waiting, the sessions that woke while others kept the
// loop busy.
func (e *Engine) pollWakes() {
	e.stall.look()
	e.stall.rouse()
	e.bells.tellProcessor(processor())
	e.chores.woken = e.now
	if n, err := epollNap(e.poller.epfd, e.poller.events[:], 0); err == nil {
		e.collect(n)
	}
}
