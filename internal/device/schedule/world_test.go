package schedule

import (
	"testing"

	"vrdma.dev/vrdma/internal/ib"
)

// A world is a loop in virtual time: NICs with queue pairs that send messages, and the cost of turns. It replaces package engine, and moves
// bytes as package transport does.
type world struct {
	t       testing.TB
	s       Scheduler
	now     ib.Time
	tenants []*Tenant
	nics    []*load
	idle    ib.Time // unused time
	each    func(*load, ib.Time, int)
	late    func() ib.Time // by how much the loop wakes late; nil: never
}

// A load is a NIC and the traffic of its queue pairs.
type load struct {
	n      *NIC
	qps    []int // remaining bytes of each queue pair's message
	at     int   // index of the next queue pair
	size   int
	pause  ib.Time // between two messages; 0: there is always one
	to     *load   // nil: a destination without a cap
	bytes  int
	msgs   int
	turns  int
	time   ib.Time
	slow   int       // how often its turns are halved, as in package engine
	posted ib.Time   // when the waiting message was posted
	posts  ib.Time   // when the next message is posted
	delays []ib.Time // from posting to first service
}

const (
	perMessage = ib.Time(150)
	perByte    = 0.05 // ns: 20 GB/s
	wholeTurn  = 256 << 10
	mtu        = 4096
)

func newWorld(t testing.TB) *world { return &world{t: t, now: 1} }

// tenant adds a tenant.
func (w *world) tenant(p TenantParams) *Tenant {
	t := NewTenant("")
	w.s.SetTenant(t, p, w.now)
	w.tenants = append(w.tenants, t)
	return t
}

// nic adds a NIC that sends messages of a size from so many queue pairs.
func (w *world) nic(t *Tenant, p NICParams, qps, size int) *load {
	l := &load{n: &NIC{}, qps: make([]int, qps), size: size}
	for i := range l.qps {
		l.qps[i] = size
	}
	l.n.Of = l
	w.s.Join(l.n, t, w.now)
	w.s.SetNIC(l.n, p, w.now)
	w.nics = append(w.nics, l)
	if size > 0 {
		w.s.Ready(l.n, w.now)
	}
	return l
}

// cappeds are the ways to request a rate from capped.
var cappeds = []string{"a NIC", "a tenant", "two NICs of a tenant", "a guaranteed NIC of a tenant", "to a NIC", "to a tenant"}

// cappedsFor returns the ways to test a rate: all of them for low rates, which take little time.
func cappedsFor(r Rate) []string {
	if r.Out > 200_000_000 || r.MessagesOut > 10_000 {
		return cappeds[:1]
	}
	return cappeds
}

// capped adds one or two NICs that send as much as a cap allows, and returns a function that counts their traffic in bytes or messages.
func (w *world) capped(whose string, r Rate, size int) (sent func() int) {
	free := func() *Tenant { return w.tenant(TenantParams{}) }
	in := Rate{In: r.Out, MessagesIn: r.MessagesOut}
	var all []*load
	switch whose {
	case "a NIC":
		all = append(all, w.nic(free(), NICParams{Rate: r}, 4, size))
	case "a tenant":
		all = append(all, w.nic(w.tenant(TenantParams{Rate: r}), NICParams{}, 4, size))
	case "two NICs of a tenant":
		t := w.tenant(TenantParams{Rate: r})
		all = append(all, w.nic(t, NICParams{}, 4, size), w.nic(t, NICParams{}, 1, size))
	case "a guaranteed NIC of a tenant":
		all = append(all, w.nic(w.tenant(TenantParams{Rate: r}), NICParams{Guarantee: 1e10}, 4, size))
	case "to a NIC":
		all = append(all, w.nic(free(), NICParams{}, 4, size))
		all[0].to = w.nic(free(), NICParams{Rate: in}, 1, 0)
	case "to a tenant":
		all = append(all, w.nic(free(), NICParams{}, 4, size))
		all[0].to = w.nic(w.tenant(TenantParams{Rate: in}), NICParams{}, 1, 0)
	}
	return func() (n int) {
		for _, l := range all {
			if r.Out == 0 {
				n += l.msgs
			} else {
				n += l.bytes
			}
		}
		return n
	}
}

// slow makes l post a message, and the next one some time after it was sent.
func (w *world) slow(l *load, pause ib.Time) *load {
	l.pause = pause
	l.posted = w.now
	return l
}

// run runs the loop for d.
func (w *world) run(d ib.Time) {
	for end := w.now + d; w.now < end; {
		next := end
		for _, l := range w.nics {
			if l.posts == 0 {
				continue
			}
			if l.posts <= w.now {
				l.posted, l.posts = l.posts, 0
				w.s.Ready(l.n, w.now)
			} else {
				next = min(next, l.posts)
			}
		}
		w.s.Wake(w.now)
		for n := w.s.Opened(); n != nil; n = w.s.Opened() {
			for _, l := range w.nics {
				if l.to != nil && l.to.n == n && l.posts == 0 {
					w.s.Ready(l.n, w.now)
				}
			}
		}
		n := w.s.Next(w.now)
		if n == nil {
			if due := w.s.Due(); due != 0 {
				next = min(next, due)
			}
			if w.late != nil {
				next += w.late()
			}
			w.idle += next - w.now
			w.now = next
			continue
		}
		w.turn(n.Of.(*load))
	}
}

// turn lets l move what it may.
func (w *world) turn(l *load) {
	s := &w.s
	budget := s.Budget(l.n, wholeTurn>>l.slow, w.now)
	if l.to != nil {
		if !s.Admit(l.to.n, w.now) {
			s.Shut(l.to.n, w.now)
			s.Idle(l.n, w.now)
			return
		}
		budget = s.BudgetIn(l.to.n, budget, w.now)
	}
	if l.pause != 0 && l.posted != 0 {
		l.delays = append(l.delays, w.now-l.posted)
		l.posted = 0
	}
	cost := ib.Time(0)
	left := &l.qps[l.at]
	l.at = (l.at + 1) % len(l.qps)
	for budget > 0 {
		n := min(*left, budget)
		if n < *left {
			n = min(max(n-n%mtu, mtu), *left)
		}
		*left -= n
		budget -= max(n, MessageCost)
		cost += perMessage + ib.Time(float64(n)*perByte)
		msgs := 0
		if *left == 0 {
			*left = l.size
			msgs = 1
		}
		l.bytes += n
		l.msgs += msgs
		s.Out(l.n, n, msgs)
		if l.to != nil {
			s.In(l.to.n, n, msgs)
		}
		if w.each != nil {
			w.each(l, w.now+cost, n)
		}
		if msgs == 1 && l.pause != 0 {
			l.posts = w.now + cost + l.pause
			break
		}
	}
	w.now += cost
	l.time += cost
	l.turns++
	if l.posts != 0 {
		s.Idle(l.n, w.now)
	}
	if cost > 8_000 {
		l.slow = min(l.slow+1, 3)
	} else if cost < 4_000 && l.slow > 0 {
		l.slow--
	}
	s.Charge(l.n, cost)
}
