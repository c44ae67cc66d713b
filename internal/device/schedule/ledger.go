package schedule

import (
	"sync/atomic"

	"vrdma.dev/vrdma/internal/ib"
)

// Several loops, each with a Scheduler of its own, share a tenant's time by its weight. Each loop counts in a Ledger what it has
// used for the tenant, and reads what the others have used. Their time is a debt of the tenant on this loop:
//
//	loop 0 ── Charge ──▶ account ── every exchangeAfter ──▶ Ledger ◀── account ◀── Charge ── loop 1
//	                        │ what loop 1 has used
//	                        └──▶ member.elsewhere: pays with later rounds
//
// In each round a member gets its quantum, of which a part pays the debt. So a tenant with traffic on two loops gets less on a
// loop where another tenant wants turns, until the sums over all loops are as the weights. A tenant that is alone on a loop gets
// all of it. A member keeps leastPart of its quantum, so that a session does not stand still because another session of its
// tenant has a loop for itself.
//
// No loop waits for another, and nothing is locked. A loop writes to a cache line of its own, once per exchangeAfter of a
// tenant's time.

const (
	// exchangeAfter is the time that a loop uses for a member between two looks at the other loops.
	exchangeAfter = ib.Time(100_000)
	// mostElsewhere limits a debt, and so for how long a tenant that has ended its traffic on other loops gets less on this one.
	mostElsewhere = ib.Time(5_000_000)
	// A member keeps 1/leastPart of its quantum.
	leastPart = 8
)

// A Ledger is the time of a tenant, or of a NIC, on each of several loops.
type Ledger struct{ loops []entry }

// An entry is that of one loop, which alone writes it; it fills a cache line.
type entry struct {
	used atomic.Int64
	_    [56]byte
}

// NewLedger returns a ledger of so many loops.
func NewLedger(loops int) *Ledger { return &Ledger{make([]entry, loops)} }

// An account is a loop's part of a ledger.
type account struct {
	ledger *Ledger // nil: there is one loop
	loop   int
	used   ib.Time // on this loop
	told   ib.Time // the part of used that the ledger has
	seen   ib.Time // on the other loops, as of the last look
}

// open makes the account one of a ledger. What other loops have used before does not count.
func (a *account) open(l *Ledger, loop int) {
	*a = account{ledger: l, loop: loop}
	a.used = ib.Time(l.loops[loop].used.Load())
	a.told, a.seen = a.used, a.others()
}

// others is what the other loops have used.
func (a *account) others() (sum ib.Time) {
	for i := range a.ledger.loops {
		if i != a.loop {
			sum += ib.Time(a.ledger.loops[i].used.Load())
		}
	}
	return sum
}

// spend counts time of this loop, and returns what the others have used since the last look, if it is time to look.
func (a *account) spend(cost ib.Time) (elsewhere ib.Time) {
	if a.used += cost; a.used-a.told < exchangeAfter {
		return 0
	}
	a.told = a.used
	a.ledger.loops[a.loop].used.Store(int64(a.used))
	sum := a.others()
	elsewhere = sum - a.seen
	a.seen = sum
	return elsewhere
}

// Divide makes t one that has traffic on several loops, of which this is one.
func (t *Tenant) Divide(l *Ledger, loop int) { t.place.account.open(l, loop) }

// Divide makes n one that has traffic on several loops, of which this is one.
func (n *NIC) Divide(l *Ledger, loop int) { n.place.account.open(l, loop) }
