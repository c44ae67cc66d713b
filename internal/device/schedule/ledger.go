package schedule

import "vrdma.dev/vrdma/internal/ib"

// A Ledger has the time that several loops, each with a Scheduler of its own, have used for a tenant or for a NIC. The loops share
// a tenant's time by its weight: what other loops have used is a debt of the tenant on this loop.
//
//	loop 0 ── Charge ──▶ account ── every exchangeAfter ──▶ Ledger ◀── account ◀── Charge ── loop 1
//	                        │ what loop 1 has used
//	                        └──▶ member.elsewhere: later rounds pay
//
// In each round a member gets its quantum, of which a part pays the debt. So a tenant with traffic on two loops gets less on a
// loop where another tenant wants turns, until the sums over all loops are as the weights. A tenant that is alone on a loop gets
// all of it. A member keeps a part of its quantum (leastPart), so that a session does not stand still because another session of
// its tenant has a loop for itself.
type Ledger interface {
	// Exchange notes what a loop has used in all, and returns what the other loops have used in all. The others call it at the
	// same time.
	Exchange(loop int, used ib.Time) (others ib.Time)
}

const (
	// exchangeAfter is the time that a loop uses for a member between two looks at the other loops.
	exchangeAfter = ib.Time(100_000)
	// mostElsewhere limits a debt, and so for how long a tenant that has ended its traffic on other loops gets less on this one.
	mostElsewhere = ib.Time(5_000_000)
	// A member keeps 1/leastPart of its quantum.
	leastPart = 8
)

// An account is a loop's part of a ledger.
type account struct {
	ledger Ledger // nil: there is one loop
	loop   int
	used   ib.Time // on this loop
	told   ib.Time // the part of used that the ledger has
	seen   ib.Time // on the other loops, as of the last look
}

// open makes the account one of a ledger. What other loops have used before does not count.
func (a *account) open(l Ledger, loop int) {
	*a = account{ledger: l, loop: loop, seen: l.Exchange(loop, 0)}
}

// spend counts time of this loop, and returns what the others have used since the last look, if it is time to look.
func (a *account) spend(cost ib.Time) (elsewhere ib.Time) {
	if a.used += cost; a.used-a.told < exchangeAfter {
		return 0
	}
	a.told = a.used
	sum := a.ledger.Exchange(a.loop, a.used)
	elsewhere = sum - a.seen
	a.seen = sum
	return elsewhere
}

// Divide makes t a tenant that has traffic on several loops, of which this is one.
func (t *Tenant) Divide(l Ledger, loop int) { t.place.account.open(l, loop) }

// Divide makes n a NIC that has traffic on several loops, of which this is one.
func (n *NIC) Divide(l Ledger, loop int) { n.place.account.open(l, loop) }
