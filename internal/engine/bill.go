package engine

import (
	"vrdma/internal/ib"
	"vrdma/internal/nic"
)

// A bill says for which NIC the loop works. The time between two looks at the clock is that
// NIC's. There are such looks at the beginning of each pass, after each turn while others
// wait, and after each command, so a bill costs one more only where a pass goes on for another
// NIC:
//
//	clock ── doorbells ── turn for A ── turn for A ── burst for B ── clock
//	└───────────────── A's ─────────────────────────┘└───── B's ────┘
//
// Passes in which nothing is done are nobody's, and so is the time in which the loop sleeps.
//
// This is what meters and bills show. What counts against a NIC's share is charged apart, to the
// scheduler (turn.go, caps.go): turns, what came from other hosts, and the waking of programs.
// Commands are not among that: they have an order of their own (lines.go).
type bill struct {
	of    *card // nil: nobody
	since ib.Time
}

// Bill has the time until the next look at the clock charged to a NIC. It runs on the loop.
func (e *Engine) Bill(n *nic.NIC) {
	if c := e.cards.of[n]; c != nil {
		e.worksFor(c)
	}
}

// worksFor says that what comes next is done for c.
func (e *Engine) worksFor(c *card) {
	if e.bill.of != c {
		e.turnTo(c)
	}
}

// turnTo is worksFor after another NIC, or nobody.
func (e *Engine) turnTo(c *card) {
	if e.bill.of == nil {
		e.bill.since = e.now
	} else {
		e.bill.settle(e.time())
	}
	e.bill.of = c
}

// settle charges what has been done until now.
func (b *bill) settle(now ib.Time) {
	if b.of != nil {
		b.of.nic.Spend(max(now-b.since, 0))
		b.of, b.since = nil, now
	}
}
