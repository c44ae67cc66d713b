package schedule

import "vrdma.dev/vrdma/internal/ib"

// Incoming traffic is part of the sender's turn, so the receiving NIC has no turn that could be delayed. Instead a NIC has a gate, which is
// closed while the NIC or its tenant is over a cap on incoming traffic.
//
//	sender on this host    calls Admit before it sends. If the gate is closed, the caller keeps the
//	                       sender, calls Shut, and continues when Opened returns the NIC
//	sender elsewhere       waits for its acknowledgements: the caller keeps them until Opened returns
//	                       the NIC. A sender that does not wait for them gets a congestion mark, and
//	                       its packets are dropped in the end (Arrive)

// Admit reports whether traffic may be sent to n.
func (s *Scheduler) Admit(n *NIC, now ib.Time) bool {
	return !n.limited || n.in.open(now) && n.tenant.in.open(now)
}

// BudgetIn returns how many bytes, at most most, may be sent to n in a turn.
func (s *Scheduler) BudgetIn(n *NIC, most int, now ib.Time) int {
	if !n.limited {
		return most
	}
	return max(n.tenant.in.within(n.in.within(most, now), now), 1)
}

// Shut records that a sender waits for n, whose gate is closed.
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

// reopen makes Opened return n, if a sender waits for it.
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

// Opened returns a NIC whose gate has opened; nil if there is none. If the caller does not release all waiting senders, it calls
// Shut again.
func (s *Scheduler) Opened() *NIC {
	m := s.opened.first
	if m == nil {
		return nil
	}
	m.unlink()
	return m.nic
}

// Packets from other hosts are marked or dropped when a NIC is over its cap by so many bursts.
const (
	markAt = 1
	dropAt = 4
)

// Arrive decides about a packet from another host to n: mark means to mark it, so that its sender slows down; drop means to drop it.
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
