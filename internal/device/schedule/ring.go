package schedule

import "vrdma.dev/vrdma/internal/ib"

// A member is a place in a ring: that of a tenant, or of a NIC.
type member struct {
	next, prev *member
	in         *list   // nil: in none
	nic        *NIC    // or else
	tenant     *Tenant // what it is the place of
	weight     int64
	deficit    ib.Time // what it may use in this round; negative: it used too much
	beside     ib.Time // of what it used, since its last turn and not in a turn
	round      uint64  // of the ring, when deficit was brought up to date
}

// A list is doubly linked: members leave from anywhere.
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

// A ring has members take turns so that each has its share of time.
//
//	idle ──▶ fresh ─┐            ┌──────────┐
//	  │             ├─▶ a turn ──┤ some left ├──▶ now, at the end
//	  │      now ───┘            └──────────┘
//	  │                            none left ───▶ later: becomes now when all
//	  └─ none left ──────────────────────────▶    are there, and a round begins
//
// Every member may use quantum × weight in a round. Who wants a turn after a pause, and has
// some of that left, is fresh and comes before the others. It gains nothing but the order:
// there is no more in a round than its quantum, however often it pauses.
type ring struct {
	fresh   list
	lists   [2]list // now is lists[round%2], later the other one
	round   uint64
	members int     // in the lists
	unit    ib.Time // quantum of a member of weight 1
}

const (
	// quantum is what a member of weight 1 may use in a round. It is about a turn of 256 KiB,
	// so that nobody is passed over more than once or twice.
	quantum = ib.Time(20_000)
	// leastQuantum is that of a ring where weights are large, and longRound what the heaviest
	// member should have at most: it bounds how long a round takes.
	leastQuantum = ib.Time(2_000)
	longRound    = ib.Time(320_000)
	// MostTurn is what a turn is charged at most. One that took longer was interrupted: the
	// loop had no processor, for which nobody can be blamed.
	MostTurn = ib.Time(400_000)
	// mostDebt bounds how long a member is passed over.
	mostDebt = 4 * MostTurn
)

func (r *ring) now() *list   { return &r.lists[r.round&1] }
func (r *ring) later() *list { return &r.lists[r.round&1^1] }

// weigh makes the quantum fit the heaviest member.
func (r *ring) weigh(heaviest int64) {
	r.unit = max(leastQuantum, min(quantum, longRound/ib.Time(max(heaviest, 1))))
}

// enter says that m wants turns.
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

// leave says that m wants none.
func (r *ring) leave(m *member) {
	if m.in != nil {
		m.unlink()
		r.members--
	}
}

// refresh gives m what the rounds since it was looked at are worth, one quantum at most.
func (r *ring) refresh(m *member) {
	n := r.round - m.round
	if n == 0 {
		return
	}
	m.round = r.round
	q := r.unit * ib.Time(m.weight)
	if n > uint64(mostDebt/leastQuantum) {
		m.deficit = q
		return
	}
	m.deficit = min(m.deficit+ib.Time(n)*q, q)
}

// head returns the member whose turn it is; nil: nobody wants one. It stays where it is until it is
// charged.
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

// begin begins a round with those who had their quantum: later, which becomes now, while now,
// which is empty, becomes later.
func (r *ring) begin() {
	if r.members == 1 {
		r.later().first.deficit = 0 // what nobody else wanted is free
	}
	r.round++
}

// charge takes the cost of a turn from m, and has the next one's turn come.
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

// bill takes something from m that was done outside of its turns.
func (m *member) bill(cost ib.Time) {
	cost = min(cost, MostTurn)
	m.deficit = max(m.deficit-cost, -mostDebt)
	m.beside += cost
}

// owes reports whether m has had so much, while others want turns, that what is done for it beside
// its turns has to wait: a round's quantum too much; or that quantum beside its turns, and it wants
// a turn.
func (r *ring) owes(m *member) bool {
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
