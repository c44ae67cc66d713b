package schedule

import "vrdma.dev/vrdma/internal/ib"

// A Scheduler decides which NIC gets the next turn.
type Scheduler struct {
	// Capped is called for NICs that have reached a cap, at most once per second for each; may be nil.
	Capped func(*NIC, Cap)

	sole    *NIC    // the only NIC, if it has no caps: then the rings are not used
	limited int     // NICs with caps, a guarantee or a class, or whose tenant has caps
	gates   int     // NICs and tenants with a cap on incoming traffic
	prompt  ib.Time // time of the last turn of a NIC of class latency; 0: never
	latency ring    // NICs of class latency
	green   ring    // NICs below their guarantee
	tenants ring
	wheel   wheel
	opened  list // NICs whose gate has opened, see Opened

	all      map[*NIC]bool
	heaviest int64 // largest weight of a tenant
}

// A Tenant is the scheduler's record of a tenant. The caller keeps it as long as the tenant has NICs.
type Tenant struct {
	Name    string
	params  TenantParams
	place   member
	ring    ring // its NICs that want turns
	out, in caps
	hook    hook
	nics    map[*NIC]bool
	waits   int // number of its NICs in a ring
	parked  bool
	since   ib.Time // when it was parked
}

// A NIC is the scheduler's record of a NIC.
type NIC struct {
	Of any // for the caller

	tenant  *Tenant
	params  NICParams
	place   member // entry in its tenant's ring
	first   member // entry in the ring latency or green
	before  *ring
	out, in caps
	promise bucket // the rest of its guarantee, in bytes
	time    bucket // loop time of class latency
	hook    hook   // in the wheel: parked, or waiting for its guarantee
	gate    hook
	queue   member // entry in opened

	wants          bool
	gone           bool
	parked         bool
	limited        bool
	gated          bool    // a sender waits for its gate
	parkedByTenant bool    // parked because of its tenant's caps
	gatedByTenant  bool    // its gate was closed because of its tenant's caps
	since          ib.Time // when it was parked
	shut           ib.Time // when its gate was closed
	told           ib.Time // time of the last call of Capped; 0: never
	used           Use
}

// Use is the time that a NIC had to wait.
type Use struct {
	Throttled ib.Time // it wanted turns while over a cap
	Held      ib.Time // others wanted to send to it while it was over a cap
}

const (
	// latencyTime is the part of the loop's time that a NIC of class latency may use before others, and latencyBurst the maximum at once.
	latencyTime  = 500_000_000 // ns in a second
	latencyBurst = 1_000_000
	// lately is the time after a turn of class latency in which others get short turns.
	lately = ib.Time(1_000_000)
	// shortTurn is the size of a short turn in bytes.
	shortTurn = 16 << 10
	// wakesAtOnce limits the number of wake-ups in one call.
	wakesAtOnce = 64
	// A guarantee accumulates for so many milliseconds, but at least so many bytes.
	promiseMS    = 4
	leastPromise = 256 << 10
)

// NewTenant returns a tenant without caps.
func NewTenant(name string) *Tenant {
	t := &Tenant{Name: name, nics: make(map[*NIC]bool)}
	t.place.tenant, t.place.weight, t.place.deficit = t, 1, quantum
	t.hook.what, t.hook.tenant = tenantParked, t
	t.ring.unit = quantum
	return t
}

// Join adds the new NIC n to tenant t.
func (s *Scheduler) Join(n *NIC, t *Tenant, now ib.Time) {
	n.tenant = t
	t.nics[n] = true
	if s.all == nil {
		s.all = make(map[*NIC]bool)
		s.wheel.slots = new([wheelSlots]*hook)
		s.tenants.unit, s.latency.unit, s.green.unit = quantum, quantum, quantum
	}
	s.all[n] = true
	n.place.nic, n.first.nic, n.queue.nic = n, n, n
	n.place.weight, n.first.weight = 1, 1
	n.hook.what, n.hook.nic = nicParked, n
	n.gate.what, n.gate.nic = gate, n
	n.place.deficit, n.first.deficit = quantum, quantum
	s.judge(n)
	s.chooseSole(now)
}

// Leave removes n.
func (s *Scheduler) Leave(n *NIC, now ib.Time) {
	n.wants, n.gone = false, true
	s.displace(n, now)
	if n.gate.slot != 0 {
		s.wheel.remove(&n.gate)
	}
	if n.queue.in != nil {
		n.queue.unlink()
	}
	s.countGate(n.in.limited(), false)
	if n.limited {
		s.limited--
	}
	delete(n.tenant.nics, n)
	delete(s.all, n)
	s.chooseSole(now)
}

// Move moves n to another tenant.
func (s *Scheduler) Move(n *NIC, t *Tenant, now ib.Time) {
	if n.tenant == t || n.gone {
		return
	}
	s.displace(n, now)
	delete(n.tenant.nics, n)
	n.tenant.reweigh()
	n.tenant = t
	t.nics[n] = true
	t.reweigh()
	s.judge(n)
	s.reopen(n, now)
	s.chooseSole(now)
	s.place(n, now)
}

// SetNIC changes the parameters of n at once.
func (s *Scheduler) SetNIC(n *NIC, p NICParams, now ib.Time) {
	if p == n.params {
		return
	}
	s.displace(n, now)
	before := n.in.limited()
	n.params = p
	n.place.weight = weightOf(p.Weight)
	n.out.set(p.Rate.Out, p.Rate.MessagesOut, p.Rate.Burst, now)
	n.in.set(p.Rate.In, p.Rate.MessagesIn, p.Rate.Burst, now)
	n.promise.set(p.Guarantee, max(p.Guarantee*promiseMS/1000, leastPromise), now)
	if p.Class == Latency && n.out.limited() {
		n.time.set(latencyTime, latencyBurst, now)
	} else {
		n.time.set(0, 0, now)
	}
	s.countGate(before, n.in.limited())
	n.tenant.reweigh()
	s.judge(n)
	s.reopen(n, now)
	s.chooseSole(now)
	s.place(n, now)
}

// SetTenant changes the parameters of t at once.
func (s *Scheduler) SetTenant(t *Tenant, p TenantParams, now ib.Time) {
	if p == t.params {
		return
	}
	for n := range t.nics {
		s.displace(n, now)
	}
	s.unparkTenant(t, now)
	s.tenants.leave(&t.place)
	before := t.in.limited()
	t.params = p
	t.place.weight = weightOf(p.Weight)
	t.out.set(p.Rate.Out, p.Rate.MessagesOut, p.Rate.Burst, now)
	t.in.set(p.Rate.In, p.Rate.MessagesIn, p.Rate.Burst, now)
	s.countGate(before, t.in.limited())
	s.heaviest = max(s.heaviest, t.place.weight)
	s.tenants.weigh(s.heaviest)
	for n := range t.nics {
		s.judge(n)
		s.reopen(n, now)
	}
	s.chooseSole(now)
	for n := range t.nics {
		s.place(n, now)
	}
}

// Reweigh adapts the rounds to the current tenants: a heavy one may have left.
func (s *Scheduler) Reweigh(all func(yield func(*Tenant) bool)) {
	s.heaviest = 1
	for t := range all {
		s.heaviest = max(s.heaviest, t.place.weight)
	}
	s.tenants.weigh(s.heaviest)
}

func (t *Tenant) reweigh() {
	heaviest := int64(1)
	for n := range t.nics {
		heaviest = max(heaviest, n.place.weight)
	}
	t.ring.weigh(heaviest)
}

func (s *Scheduler) countGate(before, after bool) {
	if before && !after {
		s.gates--
	} else if after && !before {
		s.gates++
	}
}

// judge updates whether n has any limits.
func (s *Scheduler) judge(n *NIC) {
	t := n.tenant
	now := n.out.limited() || n.in.limited() || t.out.limited() || t.in.limited() || n.promise.limited() || n.time.limited()
	if now && !n.limited {
		s.limited++
	} else if n.limited && !now {
		s.limited--
	}
	n.limited = now
}

// chooseSole checks whether there is only one NIC, without caps.
func (s *Scheduler) chooseSole(now ib.Time) {
	var sole *NIC
	if len(s.all) == 1 && s.limited == 0 {
		for n := range s.all {
			sole = n
		}
	}
	if was := s.sole; was != sole {
		if s.sole = nil; was != nil {
			s.place(was, now)
		}
		if sole != nil {
			s.displace(sole, now)
		}
		s.sole = sole
	}
}

// Waiting reports whether a NIC may have a turn.
func (s *Scheduler) Waiting() bool {
	if s.sole != nil {
		return s.sole.wants
	}
	return s.tenants.members|s.latency.members|s.green.members != 0
}

// Ready records that n wants turns.
func (s *Scheduler) Ready(n *NIC, now ib.Time) {
	if n.wants || n.gone {
		return
	}
	if n.limited {
		n.out.fill(now) // it was not waiting until now
	}
	if n.wants = true; s.sole == nil {
		s.place(n, now)
	}
}

// Idle records that n wants no turns.
func (s *Scheduler) Idle(n *NIC, now ib.Time) {
	if n.wants = false; s.sole == nil {
		s.displace(n, now)
	}
}

// place puts n into the ring for its next turn.
func (s *Scheduler) place(n *NIC, now ib.Time) {
	if !n.wants || n.parked || n.place.in != nil || n.first.in != nil || s.sole == n {
		return
	}
	t := n.tenant
	if t.waits++; t.waits == 1 && n.limited {
		t.out.fill(now) // no NIC was waiting for it until now
	}
	switch {
	case !n.limited:
	case n.time.limited() && n.time.open(now):
		n.before = &s.latency
		s.latency.enter(&n.first)
		return
	case n.promise.limited() && n.promise.open(now):
		n.before = &s.green
		s.green.enter(&n.first)
		return
	case n.time.limited():
		n.hook.what = guaranteed
		s.wheel.wait(&n.hook, n.time.ready(), now)
	case n.promise.limited():
		n.hook.what = guaranteed
		s.wheel.wait(&n.hook, n.promise.ready(), now)
	}
	if t.ring.enter(&n.place); !t.parked {
		s.tenants.enter(&t.place)
	}
}

// displace removes n from its ring.
func (s *Scheduler) displace(n *NIC, now ib.Time) {
	if n.parked {
		n.parked = false
		n.used.Throttled += now - n.since
	}
	if n.hook.slot != 0 {
		s.wheel.remove(&n.hook)
	}
	t := n.tenant
	if n.first.in != nil || n.place.in != nil {
		t.waits--
	}
	if n.first.in != nil {
		n.before.leave(&n.first)
	}
	if n.place.in != nil {
		if t.ring.leave(&n.place); t.ring.members == 0 {
			s.tenants.leave(&t.place)
			s.unparkTenant(t, now)
		}
	}
}

// Next returns the NIC whose turn it is; nil if none may have one now. It stays the next until it is charged or idle.
func (s *Scheduler) Next(now ib.Time) *NIC {
	if n := s.sole; n != nil {
		if n.wants {
			return n
		}
		return nil
	}
	for {
		n := s.head(now)
		if n == nil {
			return nil
		}
		if !n.limited {
			return n
		}
		n.out.catchUp(now)
		n.tenant.out.catchUp(now)
		if n.out.open(now) && n.tenant.out.open(now) {
			if n.before == &s.latency && n.first.in != nil {
				s.prompt = now
			}
			return n
		}
		s.park(n, now)
	}
}

// head returns the NIC whose turn it would be without caps; nil if none wants one.
func (s *Scheduler) head(now ib.Time) *NIC {
	for {
		var n *NIC
		if s.latency.members != 0 {
			n = s.latency.head().nic
			if n.time.open(now) {
				return n
			}
		} else if s.green.members != 0 {
			n = s.green.head().nic
			if n.promise.open(now) {
				return n
			}
		} else if s.tenants.members != 0 {
			t := s.tenants.head().tenant
			t.out.catchUp(now)
			if t.out.open(now) {
				return t.ring.head().nic
			}
			s.parkTenant(t, now)
			continue
		} else {
			return nil
		}
		s.displace(n, now) // its precedence is used up
		s.place(n, now)
	}
}

// park makes n wait until it is below its caps.
func (s *Scheduler) park(n *NIC, now ib.Time) {
	s.met(n, false, now)
	s.displace(n, now)
	n.parked, n.since = true, now
	n.parkedByTenant = !n.tenant.out.open(now)
	n.hook.what = nicParked
	s.wheel.wait(&n.hook, max(n.out.ready(), n.tenant.out.ready()), now)
}

// parkTenant makes t wait until it is below its caps.
func (s *Scheduler) parkTenant(t *Tenant, now ib.Time) {
	s.met(t.ring.head().nic, false, now)
	s.tenants.leave(&t.place)
	t.parked, t.since = true, now
	s.wheel.wait(&t.hook, t.out.ready(), now)
}

// unparkTenant ends that wait. Each of its NICs that wanted a turn was throttled.
func (s *Scheduler) unparkTenant(t *Tenant, now ib.Time) {
	if !t.parked {
		return
	}
	t.parked = false
	if t.hook.slot != 0 {
		s.wheel.remove(&t.hook)
	}
	for n := range t.ring.each {
		n.used.Throttled += now - t.since
	}
}

// Charge charges n for a turn that took cost of the loop's time.
func (s *Scheduler) Charge(n *NIC, cost ib.Time) {
	if s.sole != nil {
		return
	}
	t := n.tenant
	if n.time.limited() {
		n.time.take(int(min(cost, MostTurn)))
	}
	if n.first.in != nil {
		n.before.charge(&n.first, cost)
	}
	t.ring.charge(&n.place, cost)
	s.tenants.charge(&t.place, cost)
}

// Inherit makes the buckets of n and of its tenant continue where those of o, the same NIC in another Scheduler, are. The
// traffic of o comes to n.
func (s *Scheduler) Inherit(n, o *NIC, now ib.Time) {
	n.out.inherit(&o.out, now)
	n.in.inherit(&o.in, now)
	n.promise.inherit(&o.promise, now)
	n.time.inherit(&o.time, now)
	n.tenant.out.inherit(&o.tenant.out, now)
	n.tenant.in.inherit(&o.tenant.in, now)
}

// Bill charges n for work outside of its turns.
func (s *Scheduler) Bill(n *NIC, cost ib.Time) {
	n.place.bill(cost)
	n.tenant.place.bill(cost)
}

// OverShare reports whether work for n outside of its turns must wait, because its tenant is over its share and others want turns.
func (s *Scheduler) OverShare(n *NIC) bool {
	return s.sole == nil && s.tenants.overShare(&n.tenant.place)
}

// Alone returns the NIC if there is only one, without caps: it may have every turn. Otherwise it returns nil.
func (s *Scheduler) Alone() *NIC { return s.sole }

// Used returns how long n had to wait.
func (s *Scheduler) Used(n *NIC) *Use { return &n.used }

// Limited reports whether any NIC has caps, a guarantee or a class. If not, Budget, Out, In and Admit need not be called.
func (s *Scheduler) Limited() bool { return s.limited != 0 }

// Gated reports whether any NIC has a cap on incoming traffic.
func (s *Scheduler) Gated() bool { return s.gates != 0 }

// Tenant is the name of the tenant of n.
func (n *NIC) Tenant() string { return n.tenant.Name }

// Latency reports whether n is of class latency.
func (n *NIC) Latency() bool { return n.time.limited() }

// Parked reports whether n wants a turn and is over a cap.
func (n *NIC) Parked() bool { return n.parked || n.wants && n.tenant != nil && n.tenant.parked }

// Prompt reports whether turns should be short, with few between two checks of the doorbells: a NIC of class latency was active recently.
func (s *Scheduler) Prompt(now ib.Time) bool { return s.prompt != 0 && now-s.prompt < lately }

// Budget returns how many bytes, at most most, n may move in a turn.
func (s *Scheduler) Budget(n *NIC, most int, now ib.Time) int {
	if !n.time.limited() && s.Prompt(now) {
		most = min(most, shortTurn)
	}
	if !n.limited {
		return most
	}
	most = n.tenant.out.within(n.out.within(most, now), now)
	return max(most, 1)
}

// Out records traffic that n has sent.
func (s *Scheduler) Out(n *NIC, bytes, messages int) {
	if !n.limited {
		return
	}
	n.out.take(bytes, messages)
	n.tenant.out.take(bytes, messages)
	n.promise.take(max(bytes, messages*MessageCost))
}

// In records traffic that n has received.
func (s *Scheduler) In(n *NIC, bytes, messages int) {
	if !n.limited {
		return
	}
	n.in.take(bytes, messages)
	n.tenant.in.take(bytes, messages)
}

// Wake continues the NICs and tenants whose time has come.
func (s *Scheduler) Wake(now ib.Time) {
	for range wakesAtOnce {
		h := s.wheel.pop(now)
		if h == nil {
			return
		}
		switch h.what {
		case tenantParked:
			t := h.tenant
			t.out.catchUp(now)
			if s.unparkTenant(t, now); t.ring.members > 0 {
				s.tenants.enter(&t.place)
			}
		case gate:
			if h.nic.in.catchUp(now); h.nic.gatedByTenant {
				h.nic.tenant.in.catchUp(now)
			}
			s.reopen(h.nic, now)
		default:
			if h.what == nicParked {
				if h.nic.out.catchUp(now); h.nic.parkedByTenant {
					h.nic.tenant.out.catchUp(now)
				}
			}
			s.displace(h.nic, now)
			s.place(h.nic, now)
		}
	}
}

// Due returns the time of the next Wake; 0 means never.
func (s *Scheduler) Due() ib.Time { return s.wheel.due() }
