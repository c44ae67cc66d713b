package schedule

import "vrdma.dev/vrdma/internal/ib"

// A Cap identifies a cap that a NIC has reached.
type Cap struct {
	Tenant   bool // the tenant's cap, otherwise the NIC's
	In       bool // incoming traffic, otherwise outgoing
	Messages bool // messages, otherwise bytes
}

// String returns a text like "the NIC's cap on bytes out".
func (c Cap) String() string {
	text := "the NIC's cap on "
	if c.Tenant {
		text = "the tenant's cap on "
	}
	if c.Messages {
		text += "messages "
	} else {
		text += "bytes "
	}
	if c.In {
		return text + "in"
	}
	return text + "out"
}

// tellAgain is the minimum interval between two reports about a NIC.
const tellAgain = ib.Time(1_000_000_000)

// met reports that n must wait for a cap. It is called when a NIC is parked or its gate is closed, never in a turn.
func (s *Scheduler) met(n *NIC, in bool, now ib.Time) {
	if s.Capped == nil || n.told != 0 && now-n.told < tellAgain {
		return
	}
	c := Cap{In: in}
	own, all := &n.out, &n.tenant.out
	if in {
		own, all = &n.in, &n.tenant.in
	}
	switch {
	case !own.bytes.open(now):
	case !own.messages.open(now):
		c.Messages = true
	case !all.bytes.open(now):
		c.Tenant = true
	case !all.messages.open(now):
		c.Tenant, c.Messages = true, true
	default:
		return // n waits behind other NICs, not for a cap
	}
	n.told = now
	s.Capped(n, c)
}
