package engine

import (
	"fmt"
	"slices"
	"sync/atomic"
	"time"

	"vrdma.dev/vrdma/internal/device/memory"
	"vrdma.dev/vrdma/internal/device/nic"
	"vrdma.dev/vrdma/internal/ib"
)

// Several loops. The first loop runs commands, the connection manager and what is shared of the network. The others, the data
// loops, run nothing but doorbells, turns and timers of the sessions that they have, and their packets (steering.go).
//
//	               ┌──────────── first loop ────────────┐   ┌──── data loop ────┐   ┌──── data loop ────┐
//	sessions of    │ commands, network, management,     │   │ doorbells, turns, │   │ doorbells, turns, │
//	one group ───▶ │ sessions with faults, UD …         │   │ timers, packets   │   │ timers, packets   │
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
//
// Only the first loop, or the thread that has its state, uses the fields that are not atomic.
type loops struct {
	first  *loop
	others []*loop   // the data loops
	all    []*loop   // the same, and not changed by Stop
	holds  []*loop   // those that it holds now
	meet   []*nic.QP // queue pairs whose group may have to move
	// use is how many loops are used: the first, and use - 1 others.
	use       atomic.Int32
	sessions  atomic.Int32      // of all loops
	crowd     chan struct{}     // a second session has come, see balance.go
	stopping  chan struct{}     // closed when the data loops end
	again     bool              // a timer is set to look at meet again
	retry     time.Duration     // how long that timer waits
	moves     uint64            // sessions that have moved
	held      ib.Time           // since when the data loops are held
	busy      bool              // one of them has work, or had lately
	freeUntil ib.Time           // until then they are not held again
	owners    map[string]*owner // see tenants.go
	steering  steering          // packets from other hosts
}

// addLoops makes n data loops.
func (l *loops) addLoops(n int) error {
	if n > 0 {
		l.first.sched.ledgers = newLedgers(1 + n)
	}
	for i := range n {
		// A data loop leaves the choice of its processor to the kernel: loops that try others would meet there.
		o := &Options{Resolver: l.first.opts.Resolver, Spin: l.first.opts.Spin, NoMove: true, NoFiller: l.first.opts.NoFiller, NoAckWait: l.first.opts.NoAckWait, Log: l.first.opts.Log}
		d, err := newLoop(*o, l, i+1)
		if err != nil {
			return fmt.Errorf("loop %d: %w", i+1, err)
		}
		d.clock.time = func() ib.Time { return l.first.clock.time() } // deadlines move with their queue pairs
		d.stall.first = &l.first.cmds
		d.sched.ledgers, d.sched.loop = l.first.sched.ledgers, i+1
		l.others = append(l.others, d)
	}
	l.all = slices.Clone(l.others)
	l.crowd, l.stopping, l.retry = make(chan struct{}, 1), make(chan struct{}), firstRetry
	if l.use.Store(1); !l.first.opts.Auto {
		l.use.Store(int32(l.count()))
	}
	if n > 0 {
		for b := range l.steering.table {
			l.steering.table[b] = home(b, int(l.use.Load()))
		}
	}
	return l.openShards()
}

// joined counts sessions that come and go.
func (l *loops) joined(n int32) {
	if l.sessions.Add(n) >= 2 && n > 0 {
		select {
		case l.crowd <- struct{}{}:
		default:
		}
	}
}

// stopOthers ends the data loops.
func (l *loops) stopOthers() {
	var list []*loop
	l.first.do(func() { list, l.others = l.others, nil }) // fails only if it was stopped before
	if list != nil {
		close(l.stopping)
	}
	for _, o := range list {
		o.cmds.stopping.Store(true)
		o.cmds.push(func() {})
		o.poller.kick()
		<-o.cmds.done
	}
}

// heldLoops are all loops, of which the first holds the others.
func (l *loops) heldLoops() []*loop { return append([]*loop{l.first}, l.others...) }

// Loops is how many loops there are.
func (e *Engine) Loops() int { return e.loops.count() }

// count is how many loops there are.
func (l *loops) count() int { return 1 + len(l.all) }

// mostPause bounds how long the first loop keeps off the data loops after it has held them.
const mostPause = ib.Time(1_000_000)

// mayHold reports whether the first loop may hold the others now. Data loops that are busy have at least half of the
// time: programs that make many commands delay traffic on other loops no more than on their own.
func (l *loops) mayHold(now ib.Time) bool { return now >= l.freeUntil || len(l.others) == 0 }

// holdOthers makes the data loops stand aside, and takes their state.
func (l *loops) holdOthers() {
	if len(l.others) == 0 || len(l.holds) > 0 {
		return
	}
	l.first.clock.read() // no NIC is charged for waiting
	l.held, l.busy = l.first.clock.now, false
	l.holds = append(l.holds, l.others...)
	for _, o := range l.holds {
		o.cmds.wanted.Store(true)
	}
	for _, o := range l.holds {
		o.take()
	}
	for _, o := range l.holds {
		l.tend(o)
	}
	l.first.clock.read()
}

// take takes the state of a data loop that is wanted, as soon as the loop stands aside or sleeps. The thread of a loop that
// sleeps is asking the poller, so nobody else can. With many sessions the loop is woken, and says itself who has rung.
func (o *loop) take() {
	woken := false
	spinUntil(func() bool {
		if !o.cmds.held.CompareAndSwap(free, heldByStandIn) {
			return false
		}
		if !o.cmds.sleeping.Load() || len(o.bells.of) <= standInBells {
			return true
		}
		o.cmds.held.Store(free)
		if !woken {
			woken = true
			o.poller.kick()
		}
		return false
	})
}

// tend makes a pass of a data loop that e holds, if there is work: what was posted before a command is done before it.
func (l *loops) tend(o *loop) {
	if o.clock.read(); len(o.bells.of) == 0 {
		return
	}
	if o.cmds.sleeping.Load() {
		o.bells.activateRung(o.clock.now)
	} else {
		o.wakeRung()
	}
	if due := o.sched.due(); len(o.bells.active) == 0 && !o.sched.waiting() && o.local.replies.Len() == 0 && !o.cmds.arrived.Load() && (due == 0 || due > o.clock.now) {
		return
	}
	l.busy = true
	// The watcher of o watches this thread, so that a page that stops it is found (stall.go).
	s, before := &o.stall, o.stall.count.Load()
	s.look()
	s.rouse()
	s.tid.Store(l.first.stall.tid.Load())
	s.lent.Store(true)
	if o.local.replies.Len() > 0 { // a fault has ended a pass
		o.contain(func() bool { o.local.deliverReplies(); return true })
	}
	o.longPass()
	s.lent.Store(false)
	if s.count.Load() != before {
		l.first.stall.seen.Store(false) // the watcher of l.first has seen the same
	}
	o.clock.read() // no NIC is charged for the command
}

// releaseOthers moves groups that have to move, and lets the data loops continue.
func (l *loops) releaseOthers() {
	if len(l.holds) == 0 {
		l.meet = l.meet[:0]
		return
	}
	if len(l.meet) > 0 {
		l.unite()
	}
	l.steerSoon()
	for _, o := range l.holds {
		o.cmds.wanted.Store(false)
		o.handBack()
	}
	clear(l.holds)
	l.holds = l.holds[:0]
	if l.first.clock.read(); l.busy {
		l.freeUntil = l.first.clock.now + min(l.first.clock.now-l.held, mostPause)
	}
}

// standAside gives the state of a data loop to the first loop, until the first loop gives it back.
func (e *loop) standAside() {
	if e.clock.of != nil {
		e.clock.read() // no NIC is charged for the pause
	}
	e.cmds.held.Store(free)
	spinUntil(func() bool { return !e.cmds.wanted.Load() })
	e.takeBack()
}

// onFirst runs f while all loops stand still: on the first loop, or on the thread that holds them.
func (e *loop) onFirst(f func()) {
	first := e.loops.first
	switch {
	case e == first && len(e.loops.holds) > 0, e != first && e.cmds.held.Load() == heldByStandIn:
		f()
	case e == first:
		e.loops.holdOthers()
		f()
		e.loops.releaseOthers()
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
func (e *loop) serve(n *nic.NIC) {
	a := &adapter{nic: n, part: n.NewPart()}
	e.adapters.of[n] = a
	e.adapters.readdress(n)
	e.sched.addNIC(a)
}

// unserve undoes serve.
func (e *loop) unserve(n *nic.NIC) {
	a := e.adapters.of[n]
	e.adapters.remove(a)
	e.sched.removeNIC(a)
	if e.clock.of == a {
		e.clock.of = nil
	}
	n.EndPart(a.part)
}

// place chooses the loop of a new session: that of the other sessions of its process, or the one with the fewest
// sessions.
func (l *loops) place(s *nic.Session, doorbell nic.Doorbell) *loop {
	if len(l.others) == 0 || doorbell == nil || !s.Wakes() || s.QPs() > 0 || l.mustStay(s) {
		return l.first
	}
	if k := l.kin(s); k != nil {
		return k.e
	}
	best := l.first
	for _, o := range l.others[:l.use.Load()-1] {
		if len(o.bells.of) < len(best.bells.of) {
			best = o
		}
	}
	return best
}

// kin returns another session that has to be on the loop of s: one of its process, or one that a cap holds together with
// it; nil: there is none.
func (l *loops) kin(s *nic.Session) (k *client) {
	note := func(o *nic.Session) {
		if c := clientOf(o); c != nil && o != s {
			k = c
		}
	}
	l.eachMate(s, note)
	if k == nil && s.Space != nil {
		s.NIC().EachSession(func(o *nic.Session) {
			if o.Space == s.Space {
				note(o)
			}
		})
	}
	return k
}

// mustStay reports whether a session needs the first loop, whatever queue pairs it has: its NIC is suspended, something fails on
// purpose, or packets are captured.
func (l *loops) mustStay(s *nic.Session) bool {
	a := l.first.adapters.of[s.NIC()]
	return a == nil || a.suspended || l.first.net.tap != nil || s.Faulty()
}

// pinned reports whether the session of c needs the first loop: for itself, or for a queue pair that reaches other hosts
// or groups.
func (l *loops) pinned(c *client) bool {
	if c.bell.fd < 0 || c.bell.far || l.mustStay(c.session) {
		return true
	}
	pinned := false
	c.tasks.each(func(t *task) { pinned = pinned || t.pins() })
	return pinned
}

// regroup notes that the group of a queue pair may have to move. It runs in a command.
func (l *loops) regroup(q *nic.QP) {
	if len(l.others) > 0 {
		l.meet = append(l.meet, q)
	}
}

// regroupLater is called when the route of t, found after the connection was made, leads to a queue pair of another loop,
// or from a data loop to another host. The burst is lost, and the group of t moves soon.
func (t *task) regroupLater() {
	if t.asked || t.q.Type() == ib.UD {
		return
	}
	t.asked = true
	first, q := t.e.loops.first, t.q
	first.cmds.push(func() { first.loops.regroupRouted(q) })
	first.cmds.wake()
}

// regroupRouted is regroup for a queue pair whose route was found after the connection was made. The route of its peer may
// be as old as the connection if the peer has sent nothing since.
func (l *loops) regroupRouted(q *nic.QP) {
	if q.Gone() || len(l.others) == 0 {
		return
	}
	if a := taskOf(q).route.adapter; a != nil {
		if p := a.taskAt(q.Peer()); p != nil && p.names(taskOf(q)) {
			p.reroute()
		}
	}
	l.regroup(q)
}

// reroute finds the route of a connected queue pair again if it is stale. Send does the same.
func (t *task) reroute() {
	if t.route.routes != t.adapter.nic.Routes() {
		sgid, dgid := t.q.Transport().Addresses()
		t.peer, t.asked = nil, false
		t.find(&sgid, &dgid)
	}
}

// A group that cannot be moved is tried again after firstRetry, and then after twice as long, up to lastRetry.
const (
	firstRetry = time.Millisecond
	lastRetry  = 64 * time.Millisecond
)

// unite moves groups so that connected sessions are on one loop. The first loop holds all others.
func (l *loops) unite() {
	list := slices.Clone(l.meet)
	l.meet = l.meet[:0]
	stuck := make(map[*client]bool) // looked at already
	for _, q := range list {
		c := clientOf(q.Session())
		if q.Gone() || c == nil {
			continue
		}
		if stuck[c] {
			l.meet = append(l.meet, q)
			continue
		}
		l.steering.steers(taskOf(q))
		g, to := l.meeting(taskOf(q))
		if !l.move(g, to) {
			l.meet = append(l.meet, q)
			for _, o := range g {
				stuck[o] = true
			}
		} else if t := taskOf(q); t.e != c.e && t.route.under != nil {
			t.setPath(t.path(&t.route, true)) // only the first loop knows other hosts
		}
	}
	switch {
	case len(l.meet) == 0:
		l.retry = firstRetry
	case !l.again:
		l.again = true
		time.AfterFunc(l.retry, func() { l.first.do(func() { l.again = false }) })
		l.retry = min(2*l.retry, lastRetry)
	}
}

// meeting returns the sessions that have to move because of t, and where: to the first loop if t or its group needs
// that, or else the session with fewer queue pairs, and its group, to the loop of the other. Mostly no session has to
// move, and meeting does not look at the group: a program may have thousands of queue pairs.
func (l *loops) meeting(t *task) (g []*client, to *loop) {
	p := t.localPeer()
	stays := t.pins() || t.c.astray || l.mustStay(t.q.Session())
	if (p == nil || p.e == t.e) && (t.e == l.first || !stays) {
		return nil, t.e
	}
	small, big := t, p
	if p == nil || !stays && p.q.Session().QPs() < t.q.Session().QPs() {
		small, big = p, t
	}
	if small != nil {
		g = l.group(g, small.c)
	}
	if stays || slices.ContainsFunc(g, l.pinned) {
		return l.group(g, big.c), l.first
	}
	return g, big.e
}

// pins reports whether t needs the first loop, and its session with it: it sends datagrams, or reaches other hosts by a way that
// only the first loop has.
func (t *task) pins() bool {
	return t.q.Type() == ib.UD || !t.reaches() && (t.route.adapter == nil && t.route.to.IsValid() || t.q.Transport().Path().Remote)
}

// localPeer is the queue pair of this daemon that t is connected to, and that is connected to t; nil: there is none.
// If only t is connected, by mistake or on purpose, its group does not include the other, which drops its bursts.
func (t *task) localPeer() *task {
	if t.q.Type() == ib.UD || t.q.Peer() == 0 || t.route.adapter == nil {
		return nil
	}
	p := t.route.adapter.taskAt(t.q.Peer())
	if p == nil || !p.expects(t) || clientOf(p.q.Session()) == nil {
		return nil
	}
	return p
}

// expects reports whether t is connected to the queue pair of o. It runs in a command: t may be on any loop.
func (t *task) expects(o *task) bool {
	return t.names(o) && t.route.adapter != nil && t.route.adapter.nic == o.adapter.nic
}

// names reports whether t is connected to a queue pair of the type and the number of o, of whichever NIC. Only commands
// change that, so any loop may ask.
func (t *task) names(o *task) bool { return t.q.Type() == o.q.Type() && t.q.Peer() == o.q.Num() }

// group adds the group of c to g: the sessions that its queue pairs are connected to, those of its process, and those that
// a cap holds together with it.
func (l *loops) group(g []*client, c *client) []*client {
	begin, seen := len(g), make(map[any]bool) // clients, and what several of them share
	first := func(k any) bool {
		was := seen[k]
		seen[k] = true
		return !was
	}
	for _, o := range g {
		first(o)
	}
	add := func(o *client) {
		if o != nil && first(o) {
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
		s := o.session
		if k := l.capOf(s); k != nil && first(k) {
			l.eachMate(s, func(o *nic.Session) { add(clientOf(o)) })
		}
		type process struct {
			n *nic.NIC
			s *memory.Space
		}
		if s.Space != nil && first(process{s.NIC(), s.Space}) {
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
func (l *loops) move(g []*client, to *loop) bool {
	g = slices.DeleteFunc(slices.Clone(g), func(c *client) bool { return c.e == to })
	for _, c := range g {
		if !c.movable() {
			return false
		}
	}
	all := true
	var moved []*client
	from := make(map[*loop]bool)
	for _, c := range g {
		from[c.e] = true
		d, err := c.moveTo(to)
		if err != nil {
			l.first.opts.Log.Warn("a session cannot be moved to another loop", "pid", c.session.Pid, "program", c.session.Program, "error", err)
			all = false
			continue
		}
		moved = append(moved, d)
		l.moves++
	}
	for o := range from {
		o.forgetMoved()
		o.net.flushPort() // what they have sent leaves before what they send on the other loop
	}
	l.steering.dirty = l.steering.dirty || len(moved) > 0
	for _, d := range moved {
		d.tasks.each((*task).resume)
	}
	return all
}

// movable reports whether the session of c can go to another loop.
func (c *client) movable() bool {
	ok := c.session.Movable() && c.e.local.replies.Len() == 0
	c.tasks.each(func(t *task) {
		ok = ok && !t.parked && !t.waits && (t.late == nil || !t.late.waits)
	})
	return ok
}

// moveTo makes another loop serve the session of c, and returns its record there.
func (c *client) moveTo(to *loop) (*client, error) {
	s, from := c.session, c.e
	d := &client{e: to, session: s, adapter: to.adapters.of[s.NIC()], done: c.done, bucket: c.bucket}
	d.bell = bell{client: d, fd: c.bell.fd, far: c.bell.far, page: newPage(s.Arena.Doorbell())}
	if d.bell.fd >= 0 {
		if err := to.poller.watch(d.bell.fd); err != nil {
			return nil, err
		}
	}
	c.inheritCaps(d)
	from.net.acks.flush(from.clock.now)
	c.tasks.each(func(t *task) { from.net.flights.set(t, 0) })
	from.sched.leave(&c.flow)
	from.bells.setPrompt(&c.bell, false)
	from.bells.remove(&c.bell)
	to.sched.join(&d.flow, &d.adapter.band, s.User)
	s.MoveTo(d)
	to.stall.reviewAside() // the marks of its queue pairs end there
	to.bells.setPrompt(&d.bell, d.adapter.band.nic.Latency())
	to.bells.add(&d.bell, to.clock.now)
	return d, nil
}

// forgetMoved makes queue pairs of this loop find their peers again if those have moved.
func (e *loop) forgetMoved() {
	for n := range e.adapters.of {
		n.EachQP(func(q *nic.QP) {
			if t := taskOf(q); t.e == e && t.peer != nil && t.peer.c.flow.gone {
				t.peer = nil
			}
		})
	}
}

// gather brings all groups to the first loop, as far as they can move now, and returns a session of each that cannot. It
// runs in a command.
func (l *loops) gather() (left []*client) {
	for _, o := range l.holds {
		for _, b := range o.clients() {
			if c := clientOf(b.session); c == b && !l.move(l.group(nil, c), l.first) {
				left = append(left, c)
			}
		}
	}
	return left
}

// clients are the sessions of this loop.
func (e *loop) clients() (list []*client) {
	for _, b := range e.bells.of {
		list = append(list, b.client)
	}
	return list
}
