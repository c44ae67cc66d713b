package engine

import (
	"runtime"
	"runtime/debug"

	"vrdma.dev/vrdma/internal/ib"
)

// While the loop sleeps, a goroutine with a command may do the loop's work in its
// place: what would cost two wake-ups, one of the loop and one of the goroutine that
// waits for it, then costs none. Whoever holds what belongs to the loop is told by one
// word:
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
	// standInPasses is how many passes a stand-in makes for what its command caused.
	standInPasses = 8
	// standInBells is with how many sessions at most a stand-in looks at each.
	standInBells = 64
	// patientSpins is how often a loop that wakes looks whether a stand-in has left
	// before it lets Go's scheduler decide who runs.
	patientSpins = 200
)

// standIn runs f in the place of a loop that sleeps; ran is false if it does not sleep.
func (e *Engine) standIn(f func()) (ran bool, err error) {
	if !e.cmds.held.CompareAndSwap(free, heldByStandIn) {
		return false, nil
	}
	if len(e.bells.of) > standInBells {
		e.cmds.held.Store(free)
		return false, nil
	}
	defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
	defer e.handBack()
	defer fatal()
	e.stall.tid.Store(threadID())
	e.stall.look()
	e.clock()
	// What was posted before the command happens before it. The loop may have been
	// told of it already and wait for us to leave.
	e.bells.activateRung(e.now)
	e.longPass()
	err = e.command(f)
	for range standInPasses {
		if !e.contain(e.step) {
			break
		}
	}
	e.wakeWaiters(true)
	return true, err
}

// handBack gives the loop back what belongs to it, and wakes it if there is work.
func (e *Engine) handBack() {
	if e.ledger.of != nil {
		e.clock()
	}
	due := e.nextDeadline()
	work := len(e.bells.active) > 0 || len(e.lines.boxes.open) > 0 || e.sched.waiting() || e.local.waiting() || e.shared.EventsKept() || e.mgmt.local.n > 0 || e.net.waiting() ||
		e.cmds.stopping.Load() || due != 0 && (e.chores.until == 0 || due < e.chores.until)
	e.cmds.held.Store(free)
	if work {
		e.poller.kick()
	}
}

// away lets stand-ins in, waits until a watched descriptor is readable or d has come, and
// takes everything back. It returns how many descriptors are in poller.events.
func (e *Engine) away(d ib.Time) int {
	timeout := int64(-1)
	if d != 0 {
		e.clock()
		timeout = max(int64(d-e.now), 0)
	}
	e.chores.until = d
	e.cmds.held.Store(free)
	n := e.wait(timeout)
	for i := 0; !e.cmds.held.CompareAndSwap(free, heldByLoop); i++ {
		if i < patientSpins {
			yield()
		} else {
			runtime.Gosched()
		}
	}
	if e.stall.tid.Load() != e.stall.own { // a stand-in was here
		e.stall.tid.Store(e.stall.own)
	}
	return n
}
