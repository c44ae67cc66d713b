package schedule

import "vrdma.dev/vrdma/internal/ib"

// What comes in has no turn of its NIC's that could be put off: it is in a turn of the sender.
// So a NIC has a gate. It is closed while the NIC, or its tenant, is over a cap on what comes in.
//
//	sender on this host    asks Admit before it sends. If the gate is closed the caller keeps the
//	                       sender, says so (Shut), and lets it go on when Opened names the NIC
//	sender elsewhere       has to wait for its acknowledgements: the caller keeps them until Opened
//	                       names the NIC, as it does with a sender. Who does not wait for them
//	                       is told to slow down, and what comes is lost in the end (Arrive)

// Admit reports whether something may be sent to n.
func (s *Scheduler) Admit(n *NIC, now ib.Time) bool {
	return !n.limited || n.in.open(now) && n.tenant.in.open(now)
}

// BudgetIn returns how many bytes, of most, may be sent to n in a turn.
func (s *Scheduler) BudgetIn(n *NIC, most int, now ib.Time) int {
	if !n.limited {
		return most
	}
	return max(n.tenant.in.within(n.in.within(most, now), now), 1)
}

// Shut says that somebody waits to send to n, whose gate is closed.
func (s *Scheduler) Shut(n *NIC, now ib.Time) {
	if n.queue.in != nil {
		return
	}
	if !n.gated {
		n.gated, n.shut, n.gatedByTenant = true, now, false
		s.met(n, true, now)
	}
	n.gatedByTenant = n.gatedByTenant || !n.tenant.in.open(now)
	s.wheel.wait(&n.gate, max(n.in.ready(), n.tenant.in.ready(), now), now)
}

// reopen has Opened name n, if somebody waits for that.
func (s *Scheduler) reopen(n *NIC, now ib.Time) {
	if !n.gated || n.queue.in != nil {
		return
	}
	n.gated = false
	n.used.Held += now - n.shut
	if n.gate.slot != 0 {
		s.wheel.remove(&n.gate)
	}
	s.opened.push(&n.queue)
}

// Opened takes a NIC that may be sent to again; nil: there is none more. If more senders wait than
// the caller lets go on, it calls Shut again.
func (s *Scheduler) Opened() *NIC {
	m := s.opened.first
	if m == nil {
		return nil
	}
	m.unlink()
	return m.nic
}

// What another host sends is marked when a NIC is over its cap by so many bursts, and dropped
// when by so many.
const (
	markAt = 1
	dropAt = 4
)

// Arrive says what is to become of something that another host has sent to n: whether it is to
// be marked, so that its sender slows down, or dropped.
func (s *Scheduler) Arrive(n *NIC, now ib.Time) (mark, drop bool) {
	if !n.limited {
		return false, false
	}
	for _, b := range [...]*bucket{&n.in.bytes, &n.in.messages, &n.tenant.in.bytes, &n.tenant.in.messages} {
		if !b.limited() {
			continue
		}
		b.fill(now)
		mark = mark || b.level < -markAt*b.burst
		drop = drop || b.level < -dropAt*b.burst
	}
	return mark, drop
}
