package engine

import (
	"vrdma.dev/vrdma/internal/device/nic"
	"vrdma.dev/vrdma/internal/device/schedule"
	"vrdma.dev/vrdma/internal/ib"
)

// The ledger says for which NIC the loop works. The time between two looks at the clock is that
// NIC's. There are such looks at the beginning of each pass, after each turn while others
// wait, and after each command, so the ledger costs one more only where a pass goes on for
// another NIC:
//
//	clock ── A's doorbells ── turn for A ── turn for A ── B's doorbells, a burst for B ── clock
//	└─────────────────── A's ─────────────────────────┘└───────────── B's ───────────────┘
//
// Passes in which nothing is done are nobody's, and so is the time in which the loop sleeps. Nothing
// that the loop does takes longer than schedule.MostTurn; what took longer was interrupted, and the
// rest is nobody's, too.
//
// There is one ledger: what meters and bills show is what counts against a NIC's share. That is
// turns, doorbells, commands, what came from other hosts, and the waking of programs.
type ledger struct {
	of    *card // nil: nobody
	turn  bool  // it has a turn, else it is served beside its turns
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
	if e.ledger.of != c {
		e.turnTo(c)
	}
}

// turnTo is worksFor after another NIC, or nobody. It is a function of its own so that worksFor is
// inlined.
//
//go:noinline
func (e *Engine) turnTo(c *card) {
	if e.ledger.of != nil {
		e.clock()
	}
	e.ledger = ledger{of: c, since: e.now}
}

// clock reads the time, and charges what has been done until now.
func (e *Engine) clock() {
	e.now = e.time()
	c := e.ledger.of
	if c == nil {
		return
	}
	e.ledger.of = nil
	cost := min(max(e.now-e.ledger.since, 0), schedule.MostTurn)
	if c.nic.Spend(cost); e.sched.alone == nil {
		e.countShare(c, cost)
	}
}

// countShare counts cost against the share of c.
func (e *Engine) countShare(c *card, cost ib.Time) {
	if e.ledger.turn {
		e.sched.nics.Charge(&c.band.nic, cost)
	} else {
		e.sched.nics.Bill(&c.band.nic, cost)
	}
}
