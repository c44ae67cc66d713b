package schedule

import "vrdma.dev/vrdma/internal/ib"

// A Scheduler decides which NIC has the next turn.
type Scheduler struct {
	// Capped hears of NICs that have met a cap, each once a second at most; nil: nobody does.
	Capped func(*NIC, Cap)

	sole    *NIC    // the only NIC there is, if it has no caps: then the rings are not used
	limited int     // NICs that have caps, a guarantee or a class, or whose tenant has caps
	gates   int     // NICs, and tenants, with a cap on what comes in
	prompt  ib.Time // when a NIC of class latency had a turn last; 0: never
	latency ring    // of NICs
	green   ring    // of NICs
	tenants ring
	wheel   wheel
	opened  list // gates, see Opened

	all      map[*NIC]bool
	heaviest int64 // tenant
}

// A Tenant is a tenant's place in the order. The caller keeps it as long as NICs of it are there.
type Tenant struct {
	Name    string
	params  TenantParams
	place   member
	ring    ring // NICs of it that want turns
	out, in caps
	hook    hook
	nics    map[*NIC]bool
	waits   int // NICs of it that are in a ring
	parked  bool
	since   ib.Time // when it was parked
}

// A NIC is a NIC's place in the order.
type NIC struct {
	Of any // the caller's

	tenant  *Tenant
	params  NICParams
	place   member // in its tenant's ring
	first   member // in one of those of latency and green, before
	before  *ring
	out, in caps
	promise bucket // what is left of its guarantee, in bytes
	time    bucket // of loop time, for class latency
	hook    hook   // parked, or waits for its guarantee
	gate    hook
	queue   member // among the gates that opened

	wants          bool
	gone           bool
	parked         bool
	limited        bool
	gated          bool    // its gate was closed to somebody
	parkedByTenant bool    // parked because of its tenant's caps
	gatedByTenant  bool    // its gate was closed because of those
	since          ib.Time // when it was parked
	shut           ib.Time // when its gate was closed
	told           ib.Time // when Capped heard of it last; 0: never
	used           Use
}

// Use is how long a NIC had to wait.
type Use struct {
	Throttled ib.Time // it wanted turns and was over a cap
	Held      ib.Time // others wanted to send to it, and it was over a cap
}

const (
	// latencyTime is the part of the loop's time that a NIC of class latency may have before
	// others, and latencyBurst how much of it at once.
	latencyTime  = 500_000_000 // ns in a second
	latencyBurst = 1_000_000
	// lately is for how long after a turn of class latency others have short turns.
	lately = ib.Time(1_000_000)
	// shortTurn is how many bytes those are.
	shortTurn = 16 << 10
	// wakesAtOnce bounds how many come out of the wheel in one call.
	wakesAtOnce = 64
	// A guarantee may be saved up for so many milliseconds, and so many bytes at least.
	promiseMS    = 4
	leastPromise = 256 << 10
)

// NewTenant makes a tenant without caps.
func NewTenant(name string) *Tenant {
	t := &Tenant{Name: name, nics: make(map[*NIC]bool)}
	t.place.tenant, t.place.weight, t.place.deficit = t, 1, quantum
	t.hook.what, t.hook.tenant = tenantParked, t
	t.ring.unit = quantum
	return t
}

// Join has n, a new NIC, be one of tenant t.
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

// Leave drops n.
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

// Move makes n one of another tenant.
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

// SetNIC changes the parameters of n, at once.
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

// SetTenant changes the parameters of t, at once.
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

// Reweigh makes the rounds of tenants fit those that are there: a heavy one may have gone.
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

// judge notes whether n has to be looked at more closely.
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

// chooseSole finds out whether there is one NIC only, without caps.
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

// Waiting reports whether somebody may have a turn.
func (s *Scheduler) Waiting() bool {
	if s.sole != nil {
		return s.sole.wants
	}
	return s.tenants.members|s.latency.members|s.green.members != 0
}

// Ready says that n wants turns.
func (s *Scheduler) Ready(n *NIC, now ib.Time) {
	if n.wants || n.gone {
		return
	}
	if n.limited {
		n.out.fill(now) // until now it did not wait
	}
	if n.wants = true; s.sole == nil {
		s.place(n, now)
	}
}

// Idle says that n wants none.
func (s *Scheduler) Idle(n *NIC, now ib.Time) {
	if n.wants = false; s.sole == nil {
		s.displace(n, now)
	}
}

// place puts n where its next turn comes from.
func (s *Scheduler) place(n *NIC, now ib.Time) {
	if !n.wants || n.parked || n.place.in != nil || n.first.in != nil || s.sole == n {
		return
	}
	t := n.tenant
	if t.waits++; t.waits == 1 && n.limited {
		t.out.fill(now) // until now nobody waited for it
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

// displace takes n from where its next turn would have come from.
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

// Next returns the NIC whose turn it is; nil: nobody may have one now. It stays the next until it is
// charged, or idle.
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

// head returns the NIC whose turn it would be if it was over no cap; nil: nobody wants one.
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
		s.displace(n, now) // it has used up what it has before others
		s.place(n, now)
	}
}

// park has n wait until it is under its caps.
func (s *Scheduler) park(n *NIC, now ib.Time) {
	s.met(n, false, now)
	s.displace(n, now)
	n.parked, n.since = true, now
	n.parkedByTenant = !n.tenant.out.open(now)
	n.hook.what = nicParked
	s.wheel.wait(&n.hook, max(n.out.ready(), n.tenant.out.ready()), now)
}

// parkTenant has t wait until it is under its caps.
func (s *Scheduler) parkTenant(t *Tenant, now ib.Time) {
	s.met(t.ring.head().nic, false, now)
	s.tenants.leave(&t.place)
	t.parked, t.since = true, now
	s.wheel.wait(&t.hook, t.out.ready(), now)
}

// unparkTenant ends that. Each of its NICs that wanted a turn was throttled.
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

// Charge says that a turn of n took cost of the loop's time.
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

// Bill says that something done for n outside of its turns took cost of the loop's time.
func (s *Scheduler) Bill(n *NIC, cost ib.Time) {
	n.place.bill(cost)
	n.tenant.place.bill(cost)
}

// Owes reports whether what is to be done for n outside of its turns has to wait, because its tenant
// has had more than its share and others want turns.
func (s *Scheduler) Owes(n *NIC) bool { return s.sole == nil && s.tenants.owes(&n.tenant.place) }

// Alone returns the NIC if there is one only, without caps: it may have every turn, and nobody need
// ask. Else it is nil.
func (s *Scheduler) Alone() *NIC { return s.sole }

// Used returns how long n had to wait.
func (s *Scheduler) Used(n *NIC) *Use { return &n.used }

// Limited reports whether somebody has caps, a guarantee or a class: if not, Budget, Out, In and
// Admit need not be called.
func (s *Scheduler) Limited() bool { return s.limited != 0 }

// Gated reports whether somebody has a cap on what comes in.
func (s *Scheduler) Gated() bool { return s.gates != 0 }

// Latency reports whether n is of class latency.
func (n *NIC) Latency() bool { return n.time.limited() }

// Parked reports whether n wants a turn and is over a cap.
func (n *NIC) Parked() bool { return n.parked || n.wants && n.tenant != nil && n.tenant.parked }

// Prompt reports whether turns are to be short, and few between two looks at doorbells: a NIC of
// class latency was active lately.
func (s *Scheduler) Prompt(now ib.Time) bool { return s.prompt != 0 && now-s.prompt < lately }

// Budget returns how many bytes, of most, n may move in a turn.
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

// Out says that n has sent so much.
func (s *Scheduler) Out(n *NIC, bytes, messages int) {
	if !n.limited {
		return
	}
	n.out.take(bytes, messages)
	n.tenant.out.take(bytes, messages)
	n.promise.take(max(bytes, messages*MessageCost))
}

// In says that n has been sent so much.
func (s *Scheduler) In(n *NIC, bytes, messages int) {
	if !n.limited {
		return
	}
	n.in.take(bytes, messages)
	n.tenant.in.take(bytes, messages)
}

// Wake lets those go on whose time has come.
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

// Due returns when Wake is to be called; 0: never.
func (s *Scheduler) Due() ib.Time { return s.wheel.due() }
