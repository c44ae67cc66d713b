package schedule

import "vrdma.dev/vrdma/internal/ib"

// A member is the entry of a tenant or a NIC in a ring.
type member struct {
	next, prev *member
	in         *list   // nil: in none
	nic        *NIC    // the NIC, or
	tenant     *Tenant // the tenant that it is the entry of
	weight     int64
	deficit    ib.Time // time left in this round; negative: it used too much
	beside     ib.Time // time used outside of turns since its last turn
	round      uint64  // the ring's round at the last update of deficit
	// With several loops (ledger.go): the time that other loops have used and later rounds subtract.
	account   account
	elsewhere ib.Time
}

// A list is doubly linked, because members leave from anywhere.
type list struct{ first, last *member }

func (l *list) push(m *member) {
	if m.prev, m.next, m.in = l.last, nil, l; l.last == nil {
		l.first = m
	} else {
		l.last.next = m
	}
	l.last = m
}

func (m *member) unlink() {
	l := m.in
	if m.prev == nil {
		l.first = m.next
	} else {
		m.prev.next = m.next
	}
	if m.next == nil {
		l.last = m.prev
	} else {
		m.next.prev = m.prev
	}
	m.next, m.prev, m.in = nil, nil, nil
}

// A ring gives its members turns so that each gets its share of time.
//
//	idle ──▶ fresh ─┐            ┌──────────┐
//	  │             ├─▶ a turn ──┤ some left ├──▶ now, at the end
//	  │      now ───┘            └──────────┘
//	  │                            none left ───▶ later: becomes now when all
//	  └─ none left ──────────────────────────▶    are there, and a round begins
//
// Every member may use quantum × weight in a round. A member that returns from a pause with some of that left is fresh and goes before the
// others. It gains only the order: it never gets more than its quantum in a round, however often it pauses.
type ring struct {
	fresh   list
	lists   [2]list // now is lists[round%2], later the other one
	round   uint64
	members int     // number of members in the lists
	unit    ib.Time // quantum for weight 1
}

const (
	// quantum is the time of a member of weight 1 in a round. It is about a turn of 256 KiB, so that no member is skipped more than once
	// or twice.
	quantum = ib.Time(20_000)
	// leastQuantum is the smallest quantum, for rings with large weights, and longRound the target for the heaviest member: it limits the
	// length of a round.
	leastQuantum = ib.Time(2_000)
	longRound    = ib.Time(320_000)
	// MostTurn is the maximum charge for a turn. A longer turn was interrupted: the loop had no processor, which is not the member's fault.
	MostTurn = ib.Time(400_000)
	// mostDebt limits how long a member is skipped.
	mostDebt = 4 * MostTurn
	// mostRounds is the number of rounds in which a member gets more than all debts.
	mostRounds = uint64(leastPart * (mostDebt + mostElsewhere) / leastQuantum)
)

func (r *ring) now() *list   { return &r.lists[r.round&1] }
func (r *ring) later() *list { return &r.lists[r.round&1^1] }

// weigh adapts the quantum to the heaviest member.
func (r *ring) weigh(heaviest int64) {
	r.unit = max(leastQuantum, min(quantum, longRound/ib.Time(max(heaviest, 1))))
}

// enter adds m, which wants turns.
func (r *ring) enter(m *member) {
	if m.in != nil {
		return
	}
	r.members++
	if r.refresh(m); m.deficit > 0 {
		r.fresh.push(m)
	} else {
		r.later().push(m)
	}
}

// leave removes m.
func (r *ring) leave(m *member) {
	if m.in != nil {
		m.unlink()
		r.members--
	}
}

// refresh credits m for the rounds since its last update, at most one quantum. A part is subtracted for the time that other loops have used.
func (r *ring) refresh(m *member) {
	n := r.round - m.round
	if n == 0 {
		return
	}
	m.round = r.round
	q := r.unit * ib.Time(m.weight)
	if n > uint64(mostDebt/leastQuantum) && m.elsewhere == 0 {
		m.deficit = q
		return
	}
	credit := ib.Time(min(n, mostRounds)) * q
	if m.elsewhere > 0 {
		paid := min(m.elsewhere, credit-credit/leastPart)
		m.elsewhere -= paid
		credit -= paid
	}
	m.deficit = min(m.deficit+credit, q)
}

// head returns the member whose turn it is; nil if no member wants one. The member stays there until it is charged.
func (r *ring) head() *member {
	for {
		m := r.fresh.first
		if m == nil {
			m = r.now().first
		}
		if m == nil {
			if m = r.later().first; m == nil {
				return nil
			}
			r.begin()
			continue
		}
		if r.refresh(m); m.deficit > 0 {
			return m
		}
		m.unlink()
		r.later().push(m)
	}
}

// begin starts a round with the members that have used their quantum: the list later becomes now, and now, which is empty, becomes later.
func (r *ring) begin() {
	if r.members == 1 {
		m := r.later().first
		m.deficit, m.elsewhere = 0, 0 // a single member has no deficit
	}
	r.round++
}

// charge charges m for a turn, and moves on to the next member.
func (r *ring) charge(m *member, cost ib.Time) {
	m.bill(cost)
	m.beside = 0
	if m.in != nil && r.members > 1 {
		l := m.in
		m.unlink()
		if m.deficit <= 0 {
			l = r.later()
		} else if l == &r.fresh {
			l = r.now()
		}
		l.push(m)
	}
}

// bill charges m for work outside of its turns.
func (m *member) bill(cost ib.Time) {
	cost = min(cost, MostTurn)
	m.deficit = max(m.deficit-cost, -mostDebt)
	m.beside += cost
	if m.account.ledger != nil {
		m.elsewhere = min(m.elsewhere+m.account.spend(cost), mostElsewhere)
	}
}

// overShare reports whether m is over its share while others want turns, so that work for it outside of its turns must wait. It
// is if m is a quantum over its share, or if m used a quantum outside of its turns and wants a turn.
func (r *ring) overShare(m *member) bool {
	if m.in == nil && r.members == 0 || m.in != nil && r.members == 1 {
		return false
	}
	r.refresh(m)
	q := r.unit * ib.Time(m.weight)
	return m.deficit <= -q || m.in != nil && m.beside >= q
}

// each calls yield for the NICs in the ring.
func (r *ring) each(yield func(*NIC) bool) {
	for _, l := range []*list{&r.fresh, &r.lists[0], &r.lists[1]} {
		for m := l.first; m != nil; m = m.next {
			if !yield(m.nic) {
				return
			}
		}
	}
}
