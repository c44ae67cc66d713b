package engine

import "vrdma.dev/vrdma/internal/ib"

// Far sessions are those of programs in virtual machines. A virtual CPU whose program polls never
// stops, and an emulated one does not even halt. Where such threads occupy all CPUs, a loop that yields
// has given up its time slice and runs some milliseconds later, at a tick of the kernel's clock.
//
//	CPU 0 │ virtual processor of a ─────────────────────────▶
//	CPU 1 │ virtual processor of b ──┬─ loop ─┬──────────────▶
//	                             a timer: 20 µs
//
// A loop that waits for rings of far sessions, and gets its CPU back late, therefore naps instead. The
// kernel runs a thread that wakes up at once if its slice is shorter than that of the running thread
// (EEVDF, Linux 6.12). So the loop gets a short slice, which does not give it a larger share of the CPU.

const (
	// farPace is the longest time between two rings of a far session for which the loop stays awake,
	// and how long it stays awake: some times the duration of a wake-up. A session that rings seldom
	// costs a wake-up each time, and no CPU.
	farPace = ib.Time(2_000_000)
	// farSpin is how long the loop waits for a ring without a nap if it has a CPU for itself.
	farSpin = ib.Time(300_000)
	// farNap is the length of a nap. When the loop gets its CPU back late it naps for farCrowded, and
	// then twice as long each time that a yield is late again, up to farFull. With programs of this
	// host, which yield, a yield is better than a nap.
	farNap     = 20_000
	farCrowded = ib.Time(1_000_000)
	farFull    = ib.Time(32_000_000)
	// farSlice is the loop's time slice while there are far sessions, and farSlack its timer slack,
	// in nanoseconds.
	farSlice = 100_000
	farSlack = 1_000
	// nearRings is the number of rings of other sessions since the last ring of a far one after which
	// the loop does not nap: programs of this host wait for each other, and a nap delays them. A
	// program that talks with a virtual machine rings once for each answer.
	nearRings = 2
)

// slice sets the time slice of the loop's thread. A stand-in must not call it: it runs on another
// thread.
func (d *doorbells) slice() {
	if d.short = d.fars > 0; d.short {
		setSlice(farSlice, farSlack)
	} else {
		setSlice(0, 0)
	}
}

// rung notes that a far session rang.
func (d *doorbells) rung(b *bell, now ib.Time) {
	if now-b.rang < farPace {
		d.awaited = now + farPace
	}
	b.rang = now
	d.nears = 0
}

// mayNap reports whether a nap holds up no program of this host: doorbells do not end a nap.
func (p *processor) mayNap() bool {
	near := p.bells.nears >= nearRings && p.clock.now-p.bells.near < idleAfter
	return !near && !p.sched.nics.Prompt(p.clock.now)
}

// awaitFar lets others run while the loop waits for rings of far sessions. quiet is for how long
// nothing has happened.
func (p *processor) awaitFar(quiet ib.Time) {
	if (p.clock.now < p.bells.crowded || quiet > farSpin) && p.mayNap() {
		doze(farNap)
		return
	}
	p.clock.read()
	left := p.clock.now
	p.rivals.yields++
	yield()
	if p.clock.read(); p.clock.now-left <= longAway {
		p.bells.naps = 0
		return
	}
	p.bells.naps = min(max(2*p.bells.naps, farCrowded), farFull)
	p.bells.crowded = p.clock.now + p.bells.naps
}
