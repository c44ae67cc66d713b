package engine

import (
	"vrdma.dev/vrdma/internal/device/nic"
	"vrdma.dev/vrdma/internal/device/schedule"
	"vrdma.dev/vrdma/internal/ib"
)

// A clock is the loop's time and its account: it knows for which NIC the loop works, and charges
// the time between two readings to that NIC. The loop reads the clock at the beginning of each
// pass, after each turn while others wait, and after each command. The account therefore costs
// one more reading only where a pass continues for another NIC:
//
//	read ── A's doorbells ── turn for A ── turn for A ── B's doorbells, a burst for B ── read
//	└────────────────── A's ──────────────────────────┘└──────────── B's ───────────────┘
//
// Idle passes and sleep are charged to no NIC. No single step of the loop takes longer than
// schedule.MostTurn. After a longer one the kernel had given the processor to others, and no NIC
// is charged for the excess.
//
// Usage reports and shares come from the same numbers: turns, doorbells, commands, packets from
// other hosts, and waking programs.
type clock struct {
	now   ib.Time        // the last reading
	time  func() ib.Time // tests replace it
	sched *scheduler     // holds the shares that are charged

	busy  ib.Time  // time that was charged to NICs
	of    *adapter // the NIC that the time is charged to; nil: none
	turn  bool     // of has a turn; else the loop works for it beside its turns
	since ib.Time  // when it began to work for of
}

// Bill charges the time until the next reading of the clock to a NIC. It runs on the loop.
func (e *Engine) Bill(n *nic.NIC) {
	if a := e.first.adapters.of[n]; a != nil {
		e.first.clock.worksFor(a)
	}
}

// worksFor charges what follows to a.
func (c *clock) worksFor(a *adapter) {
	if c.of != a {
		c.switchTo(a)
	}
}

// switchTo is worksFor after another NIC, or none. It is a separate function so that the compiler
// inlines worksFor.
//
//go:noinline
func (c *clock) switchTo(a *adapter) {
	if c.of != nil {
		c.read()
	}
	c.of, c.turn, c.since = a, false, c.now
}

// read reads the time and charges what has passed.
func (c *clock) read() {
	c.now = c.time()
	a := c.of
	if a == nil {
		return
	}
	c.of = nil
	cost := min(max(c.now-c.since, 0), schedule.MostTurn)
	c.busy += cost
	if a.part.Spend(cost); c.sched.alone == nil {
		c.countShare(a, cost)
	}
}

// countShare counts cost against the share of a.
func (c *clock) countShare(a *adapter, cost ib.Time) {
	if c.turn {
		c.sched.nics.Charge(&a.band.nic, cost)
	} else {
		c.sched.nics.Bill(&a.band.nic, cost)
	}
}
