package engine

import (
	"runtime"
	"runtime/debug"
	"time"

	"vrdma.dev/vrdma/internal/ib"
)

// While the loop sleeps, a goroutine with a command may run it in place of the loop. Otherwise
// the command costs two wake-ups, of the loop and of the goroutine that waits for it. One word
// says which of them holds the loop's state:
//
//	held by the loop ── sleep ──▶ free ── stand in ─▶ held by a stand-in
//	       ▲                       │ ▲                    │
//	       └────────── wake ───────┘ └──────── leave ─────┘
const (
	heldByLoop = iota
	free
	heldByStandIn
)

const (
	// standInPasses bounds the passes that a stand-in makes after its command.
	standInPasses = 8
	// standInBells is the number of sessions up to which there are stand-ins: a stand-in looks
	// at every doorbell page.
	standInBells = 64
	// patientSpins is how often a waking loop checks whether the stand-in has left before it
	// calls Go's scheduler.
	patientSpins = 200
	// shortSpins is how often it calls that before it sleeps, for spinNap at a time: the holder does something long.
	shortSpins = 2000
	spinNap    = 100 * time.Microsecond
)

// standIn runs f in place of a sleeping loop. If the loop does not sleep, ran is false.
func (e *loop) standIn(f func()) (ran bool, err error) {
	if e.number > 0 || !e.cmds.held.CompareAndSwap(free, heldByStandIn) {
		return false, nil
	}
	if len(e.bells.of) > standInBells || !e.loops.mayHold(e.clock.time()) {
		e.cmds.held.Store(free)
		return false, nil
	}
	defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
	defer e.handBack()
	defer fatal()
	e.stall.tid.Store(threadID())
	e.stall.look()
	e.stall.rouse()
	e.clock.read()
	// Work posted before the command is done before it. The doorbell may have woken the loop
	// already, which then waits for the stand-in to leave.
	e.bells.activateRung(e.clock.now)
	e.longPass()
	e.loops.holdOthers()
	err = e.command(f)
	e.loops.releaseOthers()
	for range standInPasses {
		if !e.contain(e.step) {
			break
		}
	}
	e.wakeWaiters(true)
	return true, err
}

// handBack releases the loop's state, and wakes the loop if there is work.
func (e *loop) handBack() {
	if e.clock.of != nil {
		e.clock.read()
	}
	due := e.nextDeadline()
	work := len(e.bells.active) > 0 || len(e.handlers.boxes.open) > 0 || e.sched.waiting() || e.local.waiting() || e.shared.EventsKept() || e.shared.Waiters() ||
		e.shared.Troubled() && !e.chores.ticking || e.mgmt.local.Len() > 0 || e.net.waiting() || e.inward.due() ||
		e.cmds.stopping.Load() || due != 0 && (e.chores.until == 0 || due < e.chores.until)
	asleep := e.cmds.sleeping.Load() // else it stands aside, and continues by itself
	e.cmds.held.Store(free)
	if work && asleep {
		e.poller.kick()
	}
}

// away admits stand-ins until a watched descriptor is readable or the time is d. Then it takes
// the loop's state back. It returns how many descriptors are in poller.events.
func (e *loop) away(d ib.Time) int {
	timeout := int64(-1)
	if d != 0 {
		e.clock.read()
		timeout = max(int64(d-e.clock.now), 0)
	}
	e.chores.until = d
	e.cmds.held.Store(free)
	n := e.poller.wait(timeout, &e.cmds.pending, &e.frames.waiting)
	e.takeBack()
	return n
}

// takeBack waits until nobody else holds the loop's state, and takes it.
func (e *loop) takeBack() {
	spinUntil(func() bool { return e.cmds.held.CompareAndSwap(free, heldByLoop) })
	if e.stall.tid.Load() != e.stall.own { // a stand-in was here
		e.stall.tid.Store(e.stall.own)
	}
}

// spinUntil waits for what another thread does within microseconds, if it has a processor.
func spinUntil(so func() bool) {
	for i := 0; !so(); i++ {
		switch {
		case i < patientSpins:
			yield()
		case i < shortSpins:
			runtime.Gosched()
		default:
			time.Sleep(spinNap)
		}
	}
}
