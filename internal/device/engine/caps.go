package engine

import (
	"vrdma.dev/vrdma/internal/device/nic"
	"vrdma.dev/vrdma/internal/device/schedule"
	"vrdma.dev/vrdma/internal/device/transport"
	"vrdma.dev/vrdma/internal/ib"
)

// Shares and caps. Package schedule decides; this is where the loop tells it what NICs send and
// are sent, and holds back who may not.
//
//	what                        whose cap           who waits
//	request, READ response      out, of the sender  its NIC: no turn until it is under its cap
//	the same, on this host      in, of who gets it  the queue pair that sends, in card.held
//	the same, from elsewhere    in, of who gets it  the ACK, in card.late: the sender's window is
//	                                                full, and it waits. Who sends on is marked, so
//	                                                that its window shrinks (a CNP), and loses it
//	                                                in the end
//	READ of another host's      in, of who asks     the queue pair that asks, in card.held: what
//	                                                is not asked for does not come
//	ACK, NAK, CNP               none: they carry no data, and who waits for one has paid already
//
// RNR NAKs would be wrong: they count as retries, and hold up a queue pair for a time that the
// program has chosen for something else.
//
// So READ data is paid for by both: by the responder's NIC, which sends it, and by the asker's.
// All of it costs nothing as long as nobody has a cap.

// heldAtOnce is how many queue pairs go on at once when a NIC is under its cap again.
const heldAtOnce = 8

// SetTenant changes the share and the caps of a tenant, which has none before. It runs on the
// loop.
func (e *Engine) SetTenant(name string, p schedule.TenantParams) {
	e.sched.nics.SetTenant(e.tenant(name), p, e.now)
	e.sched.decide()
	e.letGo()
}

// ForgetTenant says that a tenant is gone. It has no NICs any more. It runs on the loop.
func (e *Engine) ForgetTenant(name string) {
	delete(e.tenants, name)
	e.sched.nics.Reweigh(func(yield func(*schedule.Tenant) bool) {
		for _, t := range e.tenants {
			if !yield(t) {
				return
			}
		}
	})
}

// SetShare makes n, a NIC that was added, one of a tenant, and changes its share and caps. It
// runs on the loop.
func (e *Engine) SetShare(n *nic.NIC, tenant string, p schedule.NICParams) {
	c := e.cards.of[n]
	if c == nil {
		return
	}
	class := e.sched.waited.of(&c.band)
	e.sched.nics.Move(&c.band.nic, e.tenant(tenant), e.now)
	e.sched.nics.SetNIC(&c.band.nic, p, e.now)
	if e.sched.waited.of(&c.band) != class {
		c.settle(class)
	}
	e.sched.decide()
	for _, b := range e.bells.of {
		if b.client.card == c {
			e.bells.setPrompt(b, c.band.nic.Latency())
		}
	}
	e.letGo()
}

// capped passes on that a NIC has met a cap.
func capped(n *schedule.NIC, limit schedule.Cap) {
	if f := n.Of.(*band).card.nic.Capped; f != nil {
		f(limit.String())
	}
}

// tenant is the tenant of that name.
func (e *Engine) tenant(name string) *schedule.Tenant {
	t := e.tenants[name]
	if t == nil {
		if e.tenants == nil {
			e.tenants = make(map[string]*schedule.Tenant)
		}
		t = schedule.NewTenant(name)
		e.tenants[name] = t
	}
	return t
}

// defaultTenant is whose NICs are that nobody has said more about.
const defaultTenant = "default"

// rank gives a new card its place in the order of turns.
func (e *Engine) rank(c *card) {
	c.band.card = c
	c.band.nic.Of = &c.band
	e.sched.nics.Join(&c.band.nic, e.tenant(defaultTenant), e.now)
	e.sched.decide()
}

// unrank takes it away.
func (e *Engine) unrank(c *card) {
	c.settle(e.sched.waited.of(&c.band))
	e.sched.nics.Leave(&c.band.nic, e.now)
	e.sched.decide()
	if e.ledger.of == c {
		e.ledger.of = nil
	}
}

// Usage tells what n had of the loop. It runs on the loop.
func (e *Engine) Usage(n *nic.NIC) schedule.Use {
	c := e.cards.of[n]
	if c == nil {
		return schedule.Use{}
	}
	return *e.sched.nics.Used(&c.band.nic)
}

// Throttled is for how long n wanted turns and was over a cap (out), and for how long others wanted
// to send to it and it was (in). It runs on the loop.
func (e *Engine) Throttled(n *nic.NIC) (out, in ib.Time) {
	u := e.Usage(n)
	return u.Throttled, u.Held
}

// load is what a burst counts: its bytes, and whether it ends a message.
func load(b *transport.Burst) (bytes, messages int) {
	if b.Data != nil && b.Kind != transport.KindReadReq {
		bytes = b.Data.Len()
	}
	if b.Last && b.Kind < transport.KindReadResp {
		messages = 1
	}
	return bytes, messages
}

// sent charges a burst that t sends.
func (e *Engine) sent(t *task, b *transport.Burst) {
	if b.Kind <= transport.KindReadResp {
		bytes, messages := load(b)
		e.sched.nics.Out(&t.card.band.nic, bytes, messages)
	}
}

// cameIn charges a burst that t is sent.
func (e *Engine) cameIn(t *task, b *transport.Burst) {
	if b.Kind <= transport.KindReadResp {
		bytes, messages := load(b)
		e.sched.nics.In(&t.card.band.nic, bytes, messages)
	}
}

// admit is how many bytes, of budget, t may send in view of what comes in where it sends to; if
// that is nothing it is held, and admit reports false.
func (e *Engine) admit(t *task, budget int) (int, bool) {
	s := &e.sched.nics
	m := t.q.Transport()
	if m.State() >= ib.StateSQE {
		return budget, true
	}
	to := t.route.card
	if to == nil {
		sc := e.shared.Scratch()
		sc.HoldReads, sc.ReadHeld = m.Path().Remote && !s.Admit(&t.card.band.nic, e.now), false
		return budget, true
	}
	if !s.Admit(&to.band.nic, e.now) || to.held.n > 0 && !t.let {
		e.hold(t, to)
		return 0, false
	}
	t.let = false
	return s.BudgetIn(&to.band.nic, budget, e.now), true
}

// hold has t wait until NIC c is under its cap on what comes in.
func (e *Engine) hold(t *task, c *card) {
	if !t.held {
		t.held = true
		*c.held.push() = t
	}
	e.sched.nics.Shut(&c.band.nic, e.now)
}

// letGo lets those go on who wait for NICs that are under their caps again, a few at a time.
func (e *Engine) letGo() {
	for n := e.sched.nics.Opened(); n != nil; n = e.sched.nics.Opened() {
		c := n.Of.(*band).card
		for range min(c.held.n, heldAtOnce) {
			p := c.held.pop()
			t := *p
			*p = nil
			if t.held, t.let = false, true; !t.q.Gone() {
				e.schedule(t)
			}
		}
		e.acknowledge(c)
		if c.held.n > 0 || c.late.n > 0 {
			e.sched.nics.Shut(n, e.now)
		}
	}
}

// late is an acknowledgement that waits.
type late struct {
	waits bool
	route route
	b     transport.Burst
}

// withhold keeps b, an ACK for another host, if the NIC of from is over its cap on what comes in.
func (e *Engine) withhold(from *task, r *route, b *transport.Burst) bool {
	c := from.card
	if c.late.n == 0 && e.sched.nics.Admit(&c.band.nic, e.now) {
		return false
	}
	l := from.late
	if l == nil {
		l = &late{}
		from.late = l
	}
	if !l.waits {
		l.waits = true
		*c.late.push() = from
	} else if forward := (b.PSN - l.b.PSN) & ib.PSNMask; forward > ib.PSNMask/2 {
		return true
	}
	l.route, l.b = *r, *b
	e.sched.nics.Shut(&c.band.nic, e.now)
	return true
}

// acknowledge sends what waited for c.
func (e *Engine) acknowledge(c *card) {
	for n := min(c.late.n, acksOwed); n > 0; n-- {
		p := c.late.pop()
		t := *p
		*p = nil
		l := t.late
		if l.waits = false; !t.q.Gone() {
			l.route.under.Send(l.route.network, l.route.from, l.route.to, &l.b)
		}
	}
}

// throttled reports whether t wants to send and a cap keeps it from that.
func (t *task) throttled() bool { return t.held || t.queued && t.card.band.nic.Parked() }
