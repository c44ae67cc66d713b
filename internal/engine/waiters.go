package engine

import "vrdma/internal/ib"

// A program that polls an empty queue yields, and that is enough if whom it waits for is of
// its scheduler group. Between groups (containers, sessions) the kernel gives each its share
// of a processor no matter who yields: on a processor that a program has together with the
// loop, half of the time would go to polling. So active sessions are told which processor the
// loop has. A program that finds itself on the same one, and whose yields return at once,
// sleeps on a word that it shares with us and is woken when there is a completion (nic/waiting.go).
// Elsewhere nobody sleeps: a processor that is left alone takes long to wake.
//
//	┌────── CPU 0 ───────┐ ┌── CPU 1 ──┐
//	│ loop ◀─ sleeps, is │ │ program   │   polls and yields: only the peer
//	│  └──woken─▶ program│ │           │   or nobody is beside it
//	└────────────────────┘ └───────────┘

// wakeAfter is how long a program that sleeps may have to wait while the loop goes on working:
// for a stream, each wake-up takes the processor away from the loop. When the loop runs out of work
// it wakes at once.
const wakeAfter = ib.Time(50_000)

// wakeWaiters wakes the programs that slept until a completion: at once, or if that was long ago.
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
	s := e.shared.WakeWaiter()
	before := e.now
	e.clock()
	if c := clientOf(s); c != nil { // else it is about to be closed
		e.sched.bill(&c.flow, e.now-before)
	}
	return true
}

// place tells active sessions that the loop runs on this processor.
func (d *doorbells) place(cpu uint32) {
	if cpu+1 == d.cpu {
		return
	}
	d.cpu = cpu + 1
	for _, b := range d.active {
		b.place(d.cpu)
	}
}

// place tells the client which processor the loop has, if it may sleep.
func (b *bell) place(cpu uint32) {
	if b.client.session.Wakes() {
		b.page.cpu.Store(cpu)
	}
}
