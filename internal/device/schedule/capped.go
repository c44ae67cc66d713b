package schedule

import "vrdma.dev/vrdma/internal/ib"

// A Cap is one of those that a NIC can meet.
type Cap struct {
	Tenant   bool // its tenant's, else its own
	In       bool // on what comes in, else on what leaves
	Messages bool // of messages, else of bytes
}

// String is "the NIC's cap on bytes out".
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

// tellAgain is how long a NIC that has met a cap is quiet about it.
const tellAgain = ib.Time(1_000_000_000)

// met tells who wants to hear of it that n has to wait for a cap. It is called when a NIC is
// parked or its gate is closed, never in a turn.
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
		return // it waits behind others
	}
	n.told = now
	s.Capped(n, c)
}
