package engine

import (
	"fmt"
	"slices"
	"sync/atomic"
	"time"

	"vrdma.dev/vrdma/internal/device/nic"
	"vrdma.dev/vrdma/internal/device/schedule"
	"vrdma.dev/vrdma/internal/ib"
)

// Several loops. The first loop runs commands, the network and the connection manager. The others, the data loops, run
// nothing but doorbells, turns and timers of the sessions that they have.
//
//	               ┌──────────── first loop ────────────┐   ┌──── data loop ────┐   ┌──── data loop ────┐
//	sessions of    │ commands, network, management,     │   │ doorbells, turns, │   │ doorbells, turns, │
//	one group ───▶ │ sessions with caps, faults, UD, …  │   │ timers            │   │ timers            │
//	               └──────────┬─────────────────────────┘   └─────────▲─────────┘   └─────────▲─────────┘
//	                          └── holds them during a command ────────┴───────────────────────┘
//
// A session belongs to one loop, with all that it has. Sessions whose queue pairs are connected to each other form a
// group, and a group is always on one loop: a burst never crosses from one loop to another, and traffic shares no lock
// and no memory that two loops write.
//
// A command changes objects of any session, and the tables of NICs that all loops read. So the first loop holds the
// others during a command: each ends its pass and stands aside until the command is over. With commands the program
// therefore sees what it sees with one loop. A loop that sleeps is held without being woken.
//
// When a queue pair is connected to a session of another group, the group of the first moves to the loop of the second,
// after the command and before the loops continue. A group is moved as objects (nic.Session.MoveTo): memory, descriptors
// and state machines stay as they are.
//
// A group stays on the first loop, or comes back to it, if it needs what only the first loop has (pinned).
type loops struct {
	first  *Engine
	number int // 0: the first

	// Only the first loop has what follows.
	others []*Engine // the data loops
	all    []*Engine // the same, and not changed by Stop
	holds  []*Engine // those that it holds now
	meet   []*nic.QP // queue pairs whose group may have to move
	// use is how many loops are used: the first, and use - 1 others.
	use      atomic.Int32
	sessions atomic.Int32  // of all loops
	crowd    chan struct{} // a second session has come, see balance.go
	stopping chan struct{} // closed when the data loops end
	again    bool          // a timer is set to look at meet again
	moves    uint64        // sessions that have moved
	// special are the tenants with caps or a share of their own.
	special map[string]bool
}

// addLoops makes n data loops.
func (e *Engine) addLoops(n int) error {
	for i := range n {
		o := &Options{Resolver: e.opts.Resolver, Spin: e.opts.Spin, NoMove: e.opts.NoMove, Log: e.opts.Log}
		d, err := newLoop(*o)
		if err != nil {
			return fmt.Errorf("loop %d: %w", i+1, err)
		}
		d.loops.first, d.loops.number = e, i+1
		d.clock.time = func() ib.Time { return e.clock.time() } // deadlines move with their queue pairs
		d.stall.first = &e.cmds
		e.loops.others = append(e.loops.others, d)
	}
	l := &e.loops
	l.all = slices.Clone(l.others)
	l.crowd, l.stopping = make(chan struct{}, 1), make(chan struct{})
	if l.use.Store(1); !e.opts.Auto {
		l.use.Store(int32(e.Loops()))
	}
	return nil
}

// joined counts sessions that come and go.
func (e *Engine) joined(n int32) {
	if e.loops.sessions.Add(n) >= 2 && n > 0 {
		select {
		case e.loops.crowd <- struct{}{}:
		default:
		}
	}
}

// stopOthers ends the data loops.
func (e *Engine) stopOthers() {
	var list []*Engine
	e.Do(func() { list, e.loops.others = e.loops.others, nil }) // fails only if it was stopped before
	if list != nil {
		close(e.loops.stopping)
	}
	for _, o := range list {
		o.cmds.stopping.Store(true)
		o.cmds.push(func() {})
		o.poller.kick()
		<-o.cmds.done
	}
}

// Loops is how many loops there are.
func (e *Engine) Loops() int { return 1 + len(e.loops.all) }

// holdOthers makes the data loops stand aside, and takes their state.
func (e *Engine) holdOthers() {
	l := &e.loops
	if len(l.others) == 0 || len(l.holds) > 0 {
		return
	}
	l.holds = append(l.holds, l.others...)
	for _, o := range l.holds {
		o.cmds.wanted.Store(true)
	}
	for _, o := range l.holds {
		spinUntil(func() bool { return o.cmds.held.CompareAndSwap(free, heldByStandIn) })
	}
	// Work posted before a command is done before it.
	for _, o := range l.holds {
		if o.clock.read(); len(o.bells.of) == 0 {
			continue
		}
		o.wakeRung()
		if o.sched.waiting() || len(o.bells.active) > 0 {
			o.longPass()
		}
	}
}

// releaseOthers moves groups that have to move, and lets the data loops continue.
func (e *Engine) releaseOthers() {
	l := &e.loops
	if len(l.holds) == 0 {
		l.meet = l.meet[:0]
		return
	}
	if len(l.meet) > 0 {
		e.unite()
	}
	for _, o := range l.holds {
		o.cmds.wanted.Store(false)
		o.handBack()
	}
	clear(l.holds)
	l.holds = l.holds[:0]
}

// standAside gives the state of a data loop to the first loop, until the first loop gives it back.
func (e *Engine) standAside() {
	if e.clock.of != nil {
		e.clock.read() // no NIC is charged for the pause
	}
	e.cmds.held.Store(free)
	spinUntil(func() bool { return !e.cmds.wanted.Load() })
	e.takeBack()
}

// onFirst runs f while all loops stand still: on the first loop, or on the thread that holds them.
func (e *Engine) onFirst(f func()) {
	first := e.loops.first
	switch {
	case e == first && len(e.loops.holds) > 0, e != first && e.cmds.held.Load() == heldByStandIn:
		f()
	case e == first:
		e.holdOthers()
		f()
		e.releaseOthers()
	default:
		done := make(chan struct{})
		first.cmds.push(func() { defer close(done); f() })
		first.cmds.wake()
		e.cmds.held.Store(free)
		spinUntil(func() bool {
			select {
			case <-done:
				return true
			default:
				return false
			}
		})
		e.takeBack()
	}
}

// serve makes a data loop serve a NIC.
func (e *Engine) serve(n *nic.NIC) {
	a := &adapter{nic: n, part: n.NewPart()}
	e.adapters.of[n] = a
	e.sched.addNIC(a)
}

// unserve undoes serve.
func (e *Engine) unserve(n *nic.NIC) {
	a := e.adapters.of[n]
	delete(e.adapters.of, n)
	e.sched.removeNIC(a)
	if e.clock.of == a {
		e.clock.of = nil
	}
	n.EndPart(a.part)
}

// place chooses the loop of a new session: that of the other sessions of its process, or the one with the fewest
// sessions.
func (e *Engine) place(s *nic.Session, doorbell nic.Doorbell) *Engine {
	if len(e.loops.others) == 0 || doorbell == nil || !s.Wakes() || s.QPs() > 0 || e.mustStay(s) {
		return e
	}
	if k := e.kin(s); k != nil {
		return k.e
	}
	best := e
	for _, o := range e.loops.others[:e.loops.use.Load()-1] {
		if len(o.bells.of) < len(best.bells.of) {
			best = o
		}
	}
	return best
}

// kin returns another session of the process of s; nil: there is none.
func (e *Engine) kin(s *nic.Session) (k *client) {
	if s.Space == nil {
		return nil
	}
	s.NIC().EachSession(func(o *nic.Session) {
		if c := clientOf(o); c != nil && o != s && o.Space == s.Space {
			k = c
		}
	})
	return k
}

// mustStay reports whether a session needs the first loop, whatever queue pairs it has: its NIC has caps or a share of
// its own, something fails on purpose, or packets are captured.
func (e *Engine) mustStay(s *nic.Session) bool {
	a := e.adapters.of[s.NIC()]
	return a == nil || a.suspended || a.special || e.loops.special[a.tenant] || e.net.tap != nil || s.Faulty()
}

// pinned reports whether the session of c needs the first loop: for itself, or for a queue pair that reaches other hosts
// or groups.
func (e *Engine) pinned(c *client) bool {
	if c.bell.fd < 0 || c.bell.far || e.mustStay(c.session) {
		return true
	}
	pinned := false
	c.tasks.each(func(t *task) {
		pinned = pinned || t.q.Type() == ib.UD || t.route.adapter == nil && t.route.to.IsValid() || t.q.Transport().Path().Remote
	})
	return pinned
}

// regroup notes that the group of a queue pair may have to move. It runs in a command.
func (e *Engine) regroup(q *nic.QP) {
	if len(e.loops.others) > 0 {
		e.loops.meet = append(e.loops.meet, q)
	}
}

// meetsLater is called when t sends to p, which is on another loop: they were connected in an unusual order. The burst
// is lost, and their groups unite soon.
func (t *task) meetsLater(p *task) {
	if t.asked || t.q.Type() == ib.UD || p.q.Type() != t.q.Type() {
		return
	}
	t.asked = true
	first, q := t.e.loops.first, t.q
	first.cmds.push(func() { first.regroup(q) })
	first.cmds.wake()
}

// unite moves groups so that connected sessions are on one loop. The first loop holds all others.
func (e *Engine) unite() {
	l := &e.loops
	list := slices.Clone(l.meet)
	l.meet = l.meet[:0]
	for _, q := range list {
		c := clientOf(q.Session())
		if q.Gone() || c == nil {
			continue
		}
		t := taskOf(q)
		t.asked = false
		g := e.group(nil, c)
		to := c.e
		if p := t.localPeer(); p != nil && clientOf(p.q.Session()) != nil {
			g = e.group(g, p.c)
			to = p.e
		}
		if slices.ContainsFunc(g, e.pinned) {
			to = e
		}
		if !e.move(g, to) {
			l.meet = append(l.meet, q)
		} else if t = taskOf(q); t.e != c.e && t.route.under != nil {
			t.setPath(t.path(&t.route, true)) // only the first loop knows other hosts
		}
	}
	if len(l.meet) > 0 && !l.again {
		l.again = true
		time.AfterFunc(time.Millisecond, func() { e.Do(func() { l.again = false }) })
	}
}

// localPeer is the queue pair of this daemon that t is connected to; nil: there is none, or it is not found yet.
func (t *task) localPeer() *task {
	if t.q.Type() == ib.UD || t.q.Peer() == 0 || t.route.adapter == nil {
		return nil
	}
	return t.route.adapter.taskAt(t.q.Peer())
}

// group adds the group of c to g: the sessions that its queue pairs are connected to, and those of its process.
func (e *Engine) group(g []*client, c *client) []*client {
	begin := len(g)
	add := func(o *client) {
		if o != nil && !slices.Contains(g, o) {
			g = append(g, o)
		}
	}
	add(c)
	for i := begin; i < len(g); i++ {
		o := g[i]
		o.tasks.each(func(t *task) {
			if p := t.localPeer(); p != nil {
				add(clientOf(p.q.Session()))
			}
		})
		if s := o.session; s.Space != nil {
			s.NIC().EachSession(func(k *nic.Session) {
				if k.Space == s.Space {
					add(clientOf(k))
				}
			})
		}
	}
	return g
}

// move moves the sessions of g to a loop. It returns false if one of them cannot be moved now. The first loop holds all
// others.
func (e *Engine) move(g []*client, to *Engine) bool {
	g = slices.DeleteFunc(slices.Clone(g), func(c *client) bool { return c.e == to })
	for _, c := range g {
		if !c.movable() {
			return false
		}
	}
	var moved []*client
	from := make(map[*Engine]bool)
	for _, c := range g {
		from[c.e] = true
		d, err := c.moveTo(to)
		if err != nil {
			e.opts.Log.Warn("a session cannot be moved to another loop", "pid", c.session.Pid, "program", c.session.Program, "error", err)
			continue
		}
		moved = append(moved, d)
		e.loops.moves++
	}
	for o := range from {
		o.forgetMoved()
	}
	for _, d := range moved {
		d.tasks.each((*task).resume)
	}
	return true
}

// movable reports whether the session of c can go to another loop.
func (c *client) movable() bool {
	ok := c.session.Movable()
	c.tasks.each(func(t *task) {
		ok = ok && !t.parked && !t.waits && !t.held && t.flight == 0 && t.ack == 0 && (t.late == nil || !t.late.waits)
	})
	return ok
}

// moveTo makes another loop serve the session of c, and returns its record there.
func (c *client) moveTo(to *Engine) (*client, error) {
	s, from := c.session, c.e
	d := &client{e: to, session: s, adapter: to.adapters.of[s.NIC()]}
	d.bell = bell{client: d, fd: c.bell.fd, far: c.bell.far, page: newPage(s.Arena.Doorbell())}
	if d.bell.fd >= 0 {
		if err := to.poller.watch(d.bell.fd); err != nil {
			return nil, err
		}
	}
	from.sched.leave(&c.flow)
	from.bells.setPrompt(&c.bell, false)
	from.bells.remove(&c.bell)
	to.sched.join(&d.flow, &d.adapter.band, s.User)
	s.MoveTo(d)
	to.bells.setPrompt(&d.bell, d.adapter.band.nic.Latency())
	to.bells.add(&d.bell, to.clock.now)
	return d, nil
}

// forgetMoved makes queue pairs of this loop find their peers again if those have moved.
func (e *Engine) forgetMoved() {
	for n := range e.adapters.of {
		n.EachQP(func(q *nic.QP) {
			if t := taskOf(q); t.e == e && t.peer != nil && t.peer.c.flow.gone {
				t.peer = nil
			}
		})
	}
}

// gather brings all groups to the first loop, as far as they can move now. It reports whether all have come. It runs in
// a command.
func (e *Engine) gather() bool {
	all := true
	for _, o := range e.loops.holds {
		for _, b := range o.clients() {
			if c := clientOf(b.session); c == b && !e.move(e.group(nil, c), e) {
				all = false
				c.session.EachQP(e.regroup) // later, if it has to be on the first loop
			}
		}
	}
	return all
}

// clients are the sessions of this loop.
func (e *Engine) clients() (list []*client) {
	for _, b := range e.bells.of {
		list = append(list, b.client)
	}
	return list
}

// gatherNIC brings the groups of a NIC's sessions to the first loop, now or soon.
func (e *Engine) gatherNIC(n *nic.NIC) {
	if len(e.loops.others) == 0 {
		return
	}
	n.EachSession(func(s *nic.Session) {
		if c := clientOf(s); c != nil && c.e != e && !e.move(e.group(nil, c), e) {
			s.EachQP(e.regroup)
		}
	})
}

// setTenant notes the parameters of a tenant. The data loops give every tenant the same share.
func (e *Engine) setTenant(name string, p schedule.TenantParams) {
	l := &e.loops
	if l.special == nil {
		l.special = make(map[string]bool)
	}
	if !unequal(p.Weight, p.Rate, 0) {
		delete(l.special, name)
		return
	}
	l.special[name] = true
	for n, a := range e.adapters.of {
		if a.tenant == name {
			e.gatherNIC(n)
		}
	}
}

// setShare notes the tenant and the parameters of a NIC.
func (e *Engine) setShare(a *adapter, tenant string, p schedule.NICParams) {
	a.tenant, a.special = tenant, unequal(p.Weight, p.Rate, p.Guarantee)
	for _, o := range e.loops.others {
		o.sched.nics.Move(&o.adapters.of[a.nic].band.nic, o.sched.tenant(tenant), o.clock.now)
		o.sched.decide()
	}
	if a.special || e.loops.special[tenant] {
		e.gatherNIC(a.nic)
	}
}

// unequal reports whether a share has caps, or another weight than others.
func unequal(weight int, r schedule.Rate, guarantee uint64) bool {
	return weight > 1 || guarantee != 0 || r != (schedule.Rate{})
}
