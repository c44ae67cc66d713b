package engine

import "vrdma.dev/vrdma/internal/ib"

// A virtual processor whose program polls never stops, and emulated it does not even halt. Where there are no more
// processors than those, a loop that yields is behind them: it has given up its slice, and its turn comes at a tick of the kernel's clock after theirs, some
// milliseconds later. A message between two such machines took three of them.
//
//	CPU 0 │ virtual processor of a ─────────────────────────▶
//	CPU 1 │ virtual processor of b ──┬─ loop ─┬──────────────▶
//	                             a timer: 20 µs
//
// So a loop that waits for rings of such machines, and gets its processor back late, naps instead. Who wakes up is run at once if it
// wants less of the processor at a time than who runs (EEVDF, Linux 6.12): its slice is made short, which gives it no more of the processor.

const (
	// farPace is how soon one in a virtual machine has to ring again for the loop to stay awake for it, and for how long: some
	// times what waking it takes. Who rings seldom costs what a bell costs, and not a processor.
	farPace = ib.Time(2_000_000)
	// farSpin is how long the loop looks out for one without a nap if it has a processor for itself.
	farSpin = ib.Time(300_000)
	// farNap is how long a nap is. When the loop got its processor back late it naps for farCrowded, and twice as long each time that
	// a yield after that is late again, up to farFull: with a program of this host, which yields, a yield is better than a nap.
	farNap     = 20_000
	farCrowded = ib.Time(1_000_000)
	farFull    = ib.Time(32_000_000)
	// farSlice is the loop's slice while there are programs in virtual machines, and farSlack how late it may be woken, in nanoseconds.
	farSlice = 100_000
	farSlack = 1_000
	// nearRings is how often others have to ring since a far one has for the loop not to nap: they wait for each other, and a nap
	// would be in their way. Who talks with a machine rings once for each answer of it.
	nearRings = 2
)

// slice gives the loop's thread the slice that it is to have. Only the loop may call it: who stands in for it has another thread.
func (d *doorbells) slice() {
	if d.short = d.fars > 0; d.short {
		setSlice(farSlice, farSlack)
	} else {
		setSlice(0, 0)
	}
}

// rung notes that a far one rang.
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
