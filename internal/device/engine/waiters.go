package engine

import (
	"vrdma.dev/vrdma/internal/device/nic"
	"vrdma.dev/vrdma/internal/ib"
)

// waiters are programs that sleep instead of polling, and are woken when there is a completion.
//
// A program that polls an empty queue yields. That is enough if the loop is in the same scheduler
// group. Between groups (containers, login sessions) the kernel gives each its share of a CPU,
// regardless of yields: on a CPU that a program and the loop share, half of the time would be spent on
// polling. The loop therefore tells active sessions its CPU. A program on the same CPU whose
// yields return at once sleeps on a word of the doorbell page (nic/waiting.go). On other CPUs
// programs do not sleep: an idle CPU takes long to wake.
//
//	┌────────── CPU 0 ──────────┐ ┌────── CPU 1 ──────┐
//	│ loop ── wakes ──▶ program │ │ program           │
//	│                   sleeps  │ │ polls and yields  │
//	└───────────────────────────┘ └───────────────────┘
type waiters struct {
	since ib.Time // since when there is one to wake; 0: there is none

	clock  *clock
	sched  *scheduler
	shared *nic.Loop
}

// wakeAfter is how long a waiter waits while the loop continues to work: within a stream each
// wake-up takes the CPU away from the loop. A loop without work wakes waiters at once.
const wakeAfter = ib.Time(50_000)

// due reports whether to wake waiters: now, or else if one has been waiting for wakeAfter.
func (w *waiters) due(now bool) bool {
	if !w.shared.Waiters() {
		return false
	}
	if w.since == 0 {
		w.since = w.clock.now
	}
	if !now && w.clock.now-w.since < wakeAfter {
		return false
	}
	w.since = 0
	return true
}

// wakeWaiters wakes the waiters that have a completion: now, or else only if one has been waiting
// for wakeAfter.
func (e *loop) wakeWaiters(now bool) {
	if !e.waiters.due(now) {
		return
	}
	e.clock.read()
	for e.shared.Waiters() {
		e.contain(e.waiters.wakeOne)
	}
}

// wakeOne wakes a program and charges its session: a session with many waiters must not delay
// others at their expense.
func (w *waiters) wakeOne() bool {
	c, before := clientOf(w.shared.WakeWaiter()), w.clock.now
	if c == nil { // its session is closing
		w.clock.read()
		return true
	}
	w.clock.worksFor(c.adapter)
	w.clock.read()
	w.sched.bill(&c.flow, w.clock.now-before)
	return true
}

// tellProcessor tells active sessions that the loop runs on this CPU.
func (d *doorbells) tellProcessor(cpu uint32) {
	if cpu+1 == d.cpu {
		return
	}
	d.cpu = cpu + 1
	for _, b := range d.active {
		b.tellProcessor(d.cpu)
	}
}

// tellProcessor writes the number of the loop's CPU, plus one, to the doorbell page of a client
// that can be woken.
func (b *bell) tellProcessor(cpu uint32) {
	if b.client.session.Wakes() {
		b.page.cpu.Store(cpu)
	}
}
