package engine

import (
	"vrdma.dev/vrdma/internal/device/nic"
	"vrdma.dev/vrdma/internal/device/transport"
	"vrdma.dev/vrdma/internal/ib"
)

// The loop's records. Package nic has the objects; the loop keeps one record for each, which the
// object points to:
//
//	nic.NIC      adapter  its connection manager, its addresses on the network
//	nic.Session  client   its doorbells, its share of the loop
//	nic.QP       task     whether it wants a turn, its deadline, and the route to its peer
//
// A record belongs to one loop, like its object. To move an object to another loop, remove this
// record and let the other loop make one.

// A task is the loop's record of a queue pair. Its methods are what the loop does for one queue
// pair: give it a turn (turn.go), send its bursts (local.go, network.go), deliver bursts to it
// (local.go, inbox.go). It implements nic.Owner.
//
// A task holds the engine because a turn uses nearly every part of it.
type task struct {
	e       *loop
	q       *nic.QP
	c       *client
	adapter *adapter

	// For the scheduler, see scheduler.go.
	queued bool
	next   *task   // the next in the queue of its client
	since  ib.Time // when it began to want a turn
	timer  timer
	held   bool // it waits until a NIC is under its cap, see caps.go
	let    bool // it has waited, and may go first

	// For queue pairs of this host that wait for each other, see starved.go and inbox.go.
	asked   bool // the first loop knows that its route leads to another loop, see loops.go
	starved bool // it waits for its peer to post receives
	parked  bool // bursts for it wait in an inbox
	waits   bool // it waits for a parked peer

	// For the network, see flights.go and acks.go.
	flight  uint64  // its bytes in flight to another host
	ack     int     // 1 + index in acks.list; 0: no ACK of it waits
	ackAt   ib.Time // when its last ACK was due
	recvs   uint64  // receives completed by then
	answers bool    // its program answers a request soon with one of its own
	late    *late   // an ACK that a cap holds back, see caps.go; nil: none ever was

	route route
	peer  *task // the queue pair of this host that it is connected to, once found
}

// taskOf is the record of q.
func taskOf(q *nic.QP) *task { return q.Owner().(*task) }

// taskAt is the record of the queue pair with this number; nil: there is none.
func (a *adapter) taskAt(num uint32) *task {
	if q := a.nic.QP(num); q != nil {
		return taskOf(q)
	}
	return nil
}

// Connect implements nic.Owner.
func (t *task) Connect(sgid, dgid *ib.GID) transport.Path {
	t.peer, t.asked = nil, false
	t.find(sgid, dgid)
	t.e.loops.regroup(t.q)
	return t.path(&t.route, true)
}

// Disconnect implements nic.Owner.
func (t *task) Disconnect() { t.peer, t.route = nil, route{} }

// Wake implements nic.Owner.
func (t *task) Wake() {
	t.schedule()
	t.changed()
}

// Forget implements nic.Owner.
func (t *task) Forget() {
	t.e.net.flights.set(t, 0)
	t.unpark()
	if f := t.e.faults; f != nil {
		f.forget(t)
	}
	t.e.sched.forget(t)
	t.c.tasks.remove(t.q.Handle())
	t.Disconnect() // a record that still points here must not keep the peer alive
}

// Join implements nic.Owner.
func (t *task) Join(gid ib.GID) error {
	err := t.e.loops.first.join(t.adapter.nic, gid)
	if err != nil {
		t.e.opts.Log.Warn("a queue pair cannot be attached to a multicast group", "group", gid.Addr(), "why", err)
		return joinErrno(err)
	}
	return nil
}

// Leave implements nic.Owner.
func (t *task) Leave(gid ib.GID) { t.e.loops.first.leave(t.adapter.nic, gid) }

// Now implements nic.Owner.
func (t *task) Now() ib.Time { return t.e.clock.now }

// A client is the loop's record of a session. It implements nic.SessionOwner.
type client struct {
	e       *loop
	session *nic.Session
	adapter *adapter
	bell    bell
	flow    flow
	tasks   tasks
	done    uint64 // see recent
	bucket  int    // 1 + that of its queue pairs' numbers, see steering.go; 0: none
	astray  bool   // it has to come to the first loop, but could not be moved yet
}

// Adopt implements nic.SessionOwner.
func (c *client) Adopt(q *nic.QP) nic.Owner {
	t := &task{e: c.e, q: q, c: c, adapter: c.adapter}
	if q.Type() == ib.UD {
		c.e.loops.regroup(q)
	}
	c.tasks.add(q.Handle(), t)
	return t
}

// Loop implements nic.SessionOwner.
func (c *client) Loop() *nic.Loop { return c.e.shared }

// Now implements nic.SessionOwner.
func (c *client) Now() ib.Time { return c.e.clock.now }

// clientOf is the record of s; nil: the loop does not serve it.
func clientOf(s *nic.Session) *client {
	c, _ := s.Owner().(*client)
	return c
}

// tasks are a client's tasks by the handle of the queue pair. The handle is also the number of a
// bit in the doorbell page's bitmap. A row holds the tasks of one word of that bitmap.
type tasks []*row

type row [64]*task

// noTasks is the row of a word without queue pairs.
var noTasks row

// row returns the row for a word of the bitmap. The caller does not change it.
func (l tasks) row(word int) *row {
	if word < len(l) && l[word] != nil {
		return l[word]
	}
	return &noTasks
}

// each calls f for every task.
func (l tasks) each(f func(*task)) {
	for _, r := range l {
		for i := 0; r != nil && i < len(r); i++ {
			if r[i] != nil {
				f(r[i])
			}
		}
	}
}

func (l *tasks) add(handle uint32, t *task) {
	word := int(handle / 64)
	for len(*l) <= word {
		*l = append(*l, nil)
	}
	if (*l)[word] == nil {
		(*l)[word] = new(row)
	}
	(*l)[word][handle%64] = t
}

func (l tasks) remove(handle uint32) {
	r := &l[handle/64]
	(*r)[handle%64] = nil
	if **r == noTasks {
		*r = nil // handles are reused late: the row would stay empty for long
	}
}

var (
	_ nic.Owner        = (*task)(nil)
	_ nic.SessionOwner = (*client)(nil)
)
