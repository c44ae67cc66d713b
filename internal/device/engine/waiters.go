package engine

import "vrdma.dev/vrdma/internal/ib"

// A program that polls an empty queue yields, and that is enough if the loop is of the same
// scheduler group. Between groups (containers, sessions) the kernel gives each its share of a
// processor, no matter who yields: on a processor that a program and the loop have together,
// half of the time would go to polling. So active sessions are told which processor the loop
// runs on. A program that finds itself on the same one, and whose yields return at once,
// sleeps on a word of the doorbell page, and is woken when there is a completion: a waiter
// (nic/waiting.go). Elsewhere nobody sleeps: a processor that is left alone takes long to wake.
//
//	┌────────── CPU 0 ──────────┐ ┌────── CPU 1 ──────┐
//	│ loop ── wakes ──▶ program │ │ program           │
//	│                   sleeps  │ │ polls and yields  │
//	└───────────────────────────┘ └───────────────────┘

// wakeAfter is how long a waiter may have to wait while the loop goes on working: in a stream
// each wake-up takes the processor away from the loop. When the loop runs out of work it wakes
// at once.
const wakeAfter = ib.Time(50_000)

// wakeWaiters wakes the waiters for whom there is a completion: now, or else only if there has
// been one for wakeAfter.
func (e *Engine) wakeWaiters(now bool) {
	if !e.shared.Waiters() {
		return
	}
	if e.chores.owed == 0 {
		e.chores.owed = e.now
	}
	if now || e.now-e.chores.owed >= wakeAfter {
		e.chores.owed = 0
		e.clock()
		for e.shared.Waiters() {
			e.contain(e.wakeOne)
		}
	}
}

// wakeOne wakes a program at its own expense: who has many that sleep must not have others
// wait for them to be woken.
func (e *Engine) wakeOne() bool {
	c, before := clientOf(e.shared.WakeWaiter()), e.now
	if c == nil { // it is about to be closed
		e.clock()
		return true
	}
	e.worksFor(c.card)
	e.clock()
	e.sched.bill(&c.flow, e.now-before)
	return true
}

// tellProcessor tells active sessions that the loop runs on this processor.
func (d *doorbells) tellProcessor(cpu uint32) {
	if cpu+1 == d.cpu {
		return
	}
	d.cpu = cpu + 1
	for _, b := range d.active {
		b.tellProcessor(d.cpu)
	}
}

// tellProcessor tells the client which processor the loop runs on, plus one, if the client can
// be woken.
func (b *bell) tellProcessor(cpu uint32) {
	if b.client.session.Wakes() {
		b.page.cpu.Store(cpu)
	}
}
