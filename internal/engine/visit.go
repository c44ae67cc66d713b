package engine

import (
	"fmt"
	"runtime"
	"runtime/debug"

	"vrdma/internal/transport"
)

// While the loop sleeps, a goroutine with a command may do the loop's work in its
// place: what would cost two wake-ups, one of the loop and one of the goroutine that
// waits for it, then costs none. Whoever holds what belongs to the loop is told by one
// word:
//
//	held by the loop ── sleep ──▶ free ── visit ──▶ held by a visitor
//	       ▲                       │ ▲                    │
//	       └────────── wake ───────┘ └──────── leave ─────┘
const (
	heldByLoop = iota
	free
	heldByVisitor
)

const (
	// visitSteps is how many passes a visitor makes for what its command caused.
	visitSteps = 8
	// visitBells is with how many sessions at most a visitor looks at each.
	visitBells = 64
	// patientSpins is how often a loop that wakes looks whether a visitor has left
	// before it lets Go's scheduler decide who runs.
	patientSpins = 200
)

// standIn runs f in the place of a loop that sleeps; false if it does not sleep.
func (e *Engine) standIn(f func()) bool {
	if !e.held.CompareAndSwap(free, heldByVisitor) {
		return false
	}
	if len(e.bells) > visitBells {
		e.held.Store(free)
		return false
	}
	defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
	defer e.leave()
	defer fatal()
	e.clock()
	// What was posted before the command happens before it. The loop may have been
	// told of it already and wait for us to leave.
	for _, b := range e.bells {
		if !b.active && b.page.any.Load() != 0 {
			e.activate(b)
		}
	}
	e.stepLong()
	f()
	for range visitSteps {
		if !e.safely(e.step) {
			break
		}
	}
	return true
}

// fatal makes a panic the end of the program, as it would be on the loop: whoever called
// the visitor may be used to surviving its own, but these are everybody's objects.
func fatal() {
	if p := recover(); p != nil {
		text := fmt.Sprintf("in the loop's place: %v\n%s", p, debug.Stack())
		go func() { panic(text) }()
		select {}
	}
}

// leave gives the loop back what belongs to it, and wakes it if there is work.
func (e *Engine) leave() {
	due := e.nextDeadline()
	work := len(e.active) > 0 || e.sched.waiting() || e.replies.n > 0 || e.starved.n > 0 || e.mgmt.local.n > 0 || e.traffic.polled || e.acks.n > 0 || e.groupsReady.n > 0 ||
		e.stopping.Load() || due != 0 && (e.until == 0 || due < e.until)
	e.held.Store(free)
	if work {
		e.kick()
	}
}

// away lets visitors in, waits until a watched descriptor is readable or d has come, and
// takes everything back. It returns how many descriptors are in e.events.
func (e *Engine) away(d transport.Time) int {
	timeout := int64(-1)
	if d != 0 {
		e.clock()
		timeout = max(int64(d-e.now), 0)
	}
	e.until = d
	e.held.Store(free)
	n := e.wait(timeout)
	for i := 0; !e.held.CompareAndSwap(free, heldByLoop); i++ {
		if i < patientSpins {
			yield()
		} else {
			runtime.Gosched()
		}
	}
	return n
}
