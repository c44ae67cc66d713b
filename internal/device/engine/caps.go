package engine

import (
	"vrdma.dev/vrdma/internal/device/nic"
	"vrdma.dev/vrdma/internal/device/schedule"
	"vrdma.dev/vrdma/internal/device/transport"
	"vrdma.dev/vrdma/internal/ib"
)

// Shares and caps. Package schedule decides. Here the scheduler reports to it what NICs send and
// receive, and holds back traffic over a cap.
//
//	traffic                     cap of              what waits
//	request, READ response      the sender, out     its NIC: no turn until it is under its cap
//	the same, on this host      the receiver, in    the queue pair that sends, in adapter.held
//	the same, from other hosts  the receiver, in    the ACK, in adapter.late: the sender's window
//	                                                fills, and it waits. A sender that continues
//	                                                gets CNPs, so that its window shrinks, and
//	                                                then losses
//	READ from another host      the requester, in   the queue pair that reads, in adapter.held:
//	                                                no request, no data
//	ACK, NAK, CNP               none: they carry no data, and their receiver is charged already
//
// RNR NAKs would be wrong here: they count as retries, and hold up a queue pair for a time that
// the program has chosen for something else.
//
// READ data is charged twice: to the responder's NIC, which sends it, and to the requester's.
// None of this costs anything while no NIC has a cap.

// heldAtOnce is how many queue pairs continue at once when a NIC is under its cap again.
const heldAtOnce = 8

// SetTenant changes the share and the caps of a tenant; a new tenant has none. It runs on the
// loop.
func (e *Engine) SetTenant(name string, p schedule.TenantParams) {
	for _, o := range e.loops.heldLoops() {
		o.sched.nics.SetTenant(o.sched.tenant(name), p, o.clock.now)
		o.sched.decide()
		o.sched.releaseHeld()
	}
	e.loops.noteTenant(name, p)
}

// ForgetTenant removes a tenant that has no NICs any more. It runs on the loop.
func (e *Engine) ForgetTenant(name string) {
	for _, o := range e.loops.heldLoops() {
		o.sched.forgetTenant(name)
	}
	if o := e.loops.owners[name]; o != nil && len(o.nics) == 0 {
		delete(e.loops.owners, name)
	}
}

// forgetTenant removes a tenant.
func (s *scheduler) forgetTenant(name string) {
	delete(s.tenants, name)
	if s.ledgers != nil {
		delete(s.ledgers.tenants, name)
	}
	s.nics.Reweigh(func(yield func(*schedule.Tenant) bool) {
		for _, t := range s.tenants {
			if !yield(t) {
				return
			}
		}
	})
}

// SetShare moves n, a NIC that was added, to a tenant, and changes its share and caps. It runs on
// the loop.
func (e *Engine) SetShare(n *nic.NIC, tenant string, p schedule.NICParams) {
	a := e.first.adapters.of[n]
	if a == nil {
		return
	}
	for _, o := range e.loops.heldLoops() {
		o.setShare(o.adapters.of[n], tenant, p)
	}
	e.loops.noteShare(a, tenant, p)
}

// setShare is SetShare for one loop.
func (e *loop) setShare(a *adapter, tenant string, p schedule.NICParams) {
	s := &e.sched
	class := s.waited.of(&a.band)
	s.nics.Move(&a.band.nic, s.tenant(tenant), e.clock.now)
	s.nics.SetNIC(&a.band.nic, p, e.clock.now)
	if s.waited.of(&a.band) != class {
		a.settle(class)
	}
	s.decide()
	for _, b := range e.bells.of {
		if b.client.adapter == a {
			e.bells.setPrompt(b, a.band.nic.Latency())
		}
	}
	s.releaseHeld()
}

// capped reports to a NIC that it has reached a cap.
func capped(n *schedule.NIC, limit schedule.Cap) {
	if f := n.Of.(*band).adapter.nic.Capped; f != nil {
		f(limit.String())
	}
}

// tenant returns the tenant of that name, and makes it if there is none.
func (s *scheduler) tenant(name string) *schedule.Tenant {
	t := s.tenants[name]
	if t == nil {
		if s.tenants == nil {
			s.tenants = make(map[string]*schedule.Tenant)
		}
		t = schedule.NewTenant(name)
		s.tenants[name] = t
		if s.ledgers != nil {
			t.Divide(s.ledgers.tenant(name), s.loop)
		}
	}
	return t
}

// defaultTenant has the NICs that SetShare was not called for.
const defaultTenant = "default"

// addNIC makes a NIC take part in turns.
func (s *scheduler) addNIC(a *adapter) {
	a.band.adapter = a
	a.band.nic.Of = &a.band
	s.nics.Join(&a.band.nic, s.tenant(defaultTenant), *s.clock)
	if s.ledgers != nil {
		a.band.nic.Divide(s.ledgers.nic(a.nic), s.loop)
	}
	s.decide()
}

// removeNIC undoes addNIC.
func (s *scheduler) removeNIC(a *adapter) {
	a.settle(s.waited.of(&a.band))
	s.nics.Leave(&a.band.nic, *s.clock)
	if s.ledgers != nil {
		delete(s.ledgers.nics, a.nic)
	}
	s.decide()
}

// Usage returns how long n was throttled and held back by caps. It runs on the loop.
func (e *Engine) Usage(n *nic.NIC) schedule.Use {
	var sum schedule.Use
	for _, o := range e.loops.heldLoops() {
		if a := o.adapters.of[n]; a != nil {
			u := o.sched.nics.Used(&a.band.nic)
			sum.Throttled += u.Throttled
			sum.Held += u.Held
		}
	}
	return sum
}

// Throttled returns how long n wanted turns while over a cap (out), and how long others wanted to
// send to n while n was over one (in). It runs on the loop.
func (e *Engine) Throttled(n *nic.NIC) (out, in ib.Time) {
	u := e.Usage(n)
	return u.Throttled, u.Held
}

// mustWait reports whether requests for a NIC have to wait, because its tenant has used more than
// its share; a is nil if the NIC was removed.
func (s *scheduler) mustWait(a *adapter) bool { return a != nil && s.nics.OverShare(&a.band.nic) }

// load returns what a burst counts against caps: its bytes, and 1 if it ends a message.
func load(b *transport.Burst) (bytes, messages int) {
	if b.Data != nil && b.Kind != transport.KindReadReq {
		bytes = b.Data.Len()
	}
	if b.Last && b.Kind < transport.KindReadResp {
		messages = 1
	}
	return bytes, messages
}

// chargeOut counts a burst that t sends.
func (s *scheduler) chargeOut(t *task, b *transport.Burst) {
	if b.Kind <= transport.KindReadResp {
		bytes, messages := load(b)
		s.nics.Out(&t.adapter.band.nic, bytes, messages)
	}
}

// chargeIn counts a burst that t receives.
func (s *scheduler) chargeIn(t *task, b *transport.Burst) {
	if b.Kind <= transport.KindReadResp {
		bytes, messages := load(b)
		s.nics.In(&t.adapter.band.nic, bytes, messages)
	}
}

// admit returns how many bytes, at most budget, t may send under the receiver's cap on incoming
// traffic. If it may send nothing, admit holds t and returns false.
func (s *scheduler) admit(t *task, budget int, sc *transport.Scratch) (int, bool) {
	m := t.q.Transport()
	if m.State() >= ib.StateSQE {
		return budget, true
	}
	to := t.route.adapter
	if to == nil {
		sc.HoldReads, sc.ReadHeld = m.Path().Remote && !s.nics.Admit(&t.adapter.band.nic, *s.clock), false
		return budget, true
	}
	if !s.nics.Admit(&to.band.nic, *s.clock) || to.held.Len() > 0 && !t.let {
		s.hold(t, to)
		return 0, false
	}
	t.let = false
	return s.nics.BudgetIn(&to.band.nic, budget, *s.clock), true
}

// hold makes t wait until NIC a is under its cap on incoming traffic.
func (s *scheduler) hold(t *task, a *adapter) {
	if !t.held {
		t.held = true
		*a.held.Push() = t
	}
	s.nics.Shut(&a.band.nic, *s.clock)
}

// releaseHeld lets queue pairs continue that wait for NICs which are under their caps again, a few
// at a time.
func (s *scheduler) releaseHeld() {
	for n := s.nics.Opened(); n != nil; n = s.nics.Opened() {
		a := n.Of.(*band).adapter
		for range min(a.held.Len(), heldAtOnce) {
			p := a.held.Pop()
			t := *p
			*p = nil
			if t.held, t.let = false, true; !t.q.Gone() {
				s.enqueue(t)
			}
		}
		a.sendLate()
		if a.held.Len() > 0 || a.late.Len() > 0 {
			s.nics.Shut(n, *s.clock)
		}
	}
}

// late is an ACK that waits.
type late struct {
	waits bool
	route route
	b     transport.Burst
}

// withhold keeps b, an ACK for another host, if the NIC of from is over its cap on incoming
// traffic. It reports whether it did.
func (s *scheduler) withhold(from *task, r *route, b *transport.Burst) bool {
	a := from.adapter
	if a.late.Len() == 0 && s.nics.Admit(&a.band.nic, *s.clock) {
		return false
	}
	l := from.late
	if l == nil {
		l = &late{}
		from.late = l
	}
	if !l.waits {
		l.waits = true
		*a.late.Push() = from
	} else if forward := (b.PSN - l.b.PSN) & ib.PSNMask; forward > ib.PSNMask/2 {
		return true
	}
	l.route, l.b = *r, *b
	s.nics.Shut(&a.band.nic, *s.clock)
	return true
}

// sendLate sends ACKs that withhold kept.
func (a *adapter) sendLate() {
	for n := min(a.late.Len(), maxAcks); n > 0; n-- {
		p := a.late.Pop()
		t := *p
		*p = nil
		l := t.late
		if l.waits = false; !t.q.Gone() {
			l.route.under.Send(l.route.network, l.route.from, l.route.to, &l.b)
		}
	}
}

// throttled reports whether t wants to send and a cap prevents it.
func (t *task) throttled() bool { return t.held || t.queued && t.adapter.band.nic.Parked() }
