package engine

import "vrdma/internal/transport"

// sleep arms every active session and waits for a doorbell, a command or the next
// deadline.
func (e *Engine) sleep() {
	if e.acks.n > 0 {
		e.pay()
		e.flushPort()
		return
	}
	for len(e.active) > 0 {
		last := len(e.active) - 1
		if !e.rest(e.active[last]) {
			return
		}
		e.active[last] = nil
		e.active = e.active[:last]
	}
	if e.tap != nil {
		e.tap.Flush()
	}
	if e.nic.Troubled() {
		e.startTick()
	}
	e.sleeping.Store(true)
	if e.pending.Load() || e.stopping.Load() || e.arrived.Load() {
		e.sleeping.Store(false)
		return
	}
	n := e.away(e.nextDeadline())
	e.sleeping.Store(false)
	e.clock()
	e.wakes = e.now
	e.collect(n)
}

// collect activates the sessions among the first n of e.events.
func (e *Engine) collect(n int) {
	for _, ev := range e.events[:n] {
		if b := e.bells[ev.Fd]; b != nil {
			e.activate(b)
		} else if e.portFDs[ev.Fd] {
			e.traffic.wake(e.now)
		} else {
			e.groupReadable(ev.Fd)
		}
	}
}

// nextDeadline is when the loop has to look again by itself; zero is never.
func (e *Engine) nextDeadline() transport.Time {
	d := e.sched.due()
	if e.ticking && (d == 0 || e.tick < d) {
		d = e.tick
	}
	if m := e.nic.ForeignDue(); m != 0 && (d == 0 || m < d) {
		d = m
	}
	if g := &e.mgmt; g.to != nil {
		if m := g.to.Deadline(); m != 0 && (d == 0 || m < d) {
			d = m
		}
	}
	if e.peers != nil {
		if m := e.peers.Deadline(); m != 0 && (d == 0 || m < d) {
			d = m
		}
	}
	return d
}

// wait blocks until a watched descriptor is readable, or for timeout nanoseconds unless
// that is negative, and returns how many are in e.events. It touches nothing else that a
// visitor does.
func (e *Engine) wait(timeout int64) int {
	// Most waits between two messages are short. Telling the Go scheduler about
	// them costs more than they last, so the first nap is taken behind its back;
	// a garbage collection that wants this thread waits at most that long.
	if timeout < 0 || timeout > nap {
		if n, err := epollNap(e.epfd, e.events[:], nap); n > 0 || err != nil {
			return n
		}
		if e.pending.Load() {
			return 0
		}
		if timeout > 0 {
			timeout -= nap
		}
	}
	n, err := epollWait(e.epfd, e.events[:], timeout)
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
	e.wakes = e.now
	if n, err := epollNap(e.epfd, e.events[:], 0); err == nil {
		e.collect(n)
	}
}
