package engine

import (
	"vrdma.dev/vrdma/internal/device/nic"
	"vrdma.dev/vrdma/internal/device/transport"
	"vrdma.dev/vrdma/internal/ib"
)

// The loop's records. Package nic knows the objects; what the loop has to know about them is
// here, one record for each, which the object points to:
//
//	nic.NIC      card     its managers, and where it is on the network
//	nic.Session  client   its doorbells, its share of the loop
//	nic.QP       task     whether it wants a turn, by when, and where its peer is
//
// A record belongs to one loop, as its object does. To move an object to another loop is to
// take this record away and to have the other loop make one.

// A task is a queue pair as the loop sees it. It implements nic.Owner; Send is in local.go.
type task struct {
	e    *Engine
	q    *nic.QP
	c    *client
	card *card

	// For the scheduler: see there.
	queued bool
	next   *task   // behind it among those of its client that want a turn
	since  ib.Time // when it began to want one
	timer  timer
	held   bool // it waits until a NIC is under its cap, see caps.go,
	let    bool // and has done so

	// For those on this host that wait for one another: see starved.go and inbox.go.
	starved bool // it waits for its peer's receives
	parked  bool // bursts for it wait in an inbox
	waits   bool // for a peer that is parked

	// For the network: see flights.go and acks.go.
	flight  uint64  // bytes of it on their way to another host
	ack     int     // 1 + index among the acknowledgements that are owed
	ackAt   ib.Time // when the last one was due
	recvs   uint64  // receives completed by then
	answers bool    // requests to it are soon followed by its own
	late    *late   // an acknowledgement that waits, see caps.go; nil: none ever did

	route route
	peer  *task // the queue pair of this host that it is connected to, once it has been found
}

// taskOf is the record of q.
func taskOf(q *nic.QP) *task { return q.Owner().(*task) }

// taskAt is the record of the queue pair with this number, of a NIC; nil: there is none.
func (c *card) taskAt(num uint32) *task {
	if q := c.nic.QP(num); q != nil {
		return taskOf(q)
	}
	return nil
}

// Connect implements nic.Owner.
func (t *task) Connect(sgid, dgid *ib.GID) transport.Path {
	t.peer = nil
	t.find(sgid, dgid)
	return t.e.path(t, &t.route, true)
}

// Disconnect implements nic.Owner.
func (t *task) Disconnect() { t.peer, t.route = nil, route{} }

// Wake implements nic.Owner.
func (t *task) Wake() {
	t.e.schedule(t)
	t.e.changed(t)
}

// Forget implements nic.Owner.
func (t *task) Forget() {
	t.e.net.flights.set(t, 0)
	t.e.unpark(t)
	t.e.sched.forget(t)
	t.c.tasks.remove(t.q.Handle())
	t.Disconnect() // whoever still points here must not keep the peer alive
}

// Join implements nic.Owner.
func (t *task) Join(gid ib.GID) error {
	err := t.e.join(t.card, gid)
	if err != nil {
		t.e.opts.Log.Warn("a queue pair cannot be attached to a multicast group", "group", gid.Addr(), "why", err)
		return joinErrno(err)
	}
	return nil
}

// Leave implements nic.Owner.
func (t *task) Leave(gid ib.GID) { t.e.leave(t.card, gid) }

// Now implements nic.Owner.
func (t *task) Now() ib.Time { return t.e.now }

// A client is a session as the loop sees it. It implements nic.SessionOwner.
type client struct {
	e       *Engine
	session *nic.Session
	card    *card
	bell    bell
	flow    flow
	tasks   tasks
}

// Adopt implements nic.SessionOwner.
func (c *client) Adopt(q *nic.QP) nic.Owner {
	t := &task{e: c.e, q: q, c: c, card: c.card}
	c.tasks.add(q.Handle(), t)
	return t
}

// Loop implements nic.SessionOwner.
func (c *client) Loop() *nic.Loop { return c.e.shared }

// Now implements nic.SessionOwner.
func (c *client) Now() ib.Time { return c.e.now }

// clientOf is the record of s; nil: the loop does not serve it (any more).
func clientOf(s *nic.Session) *client {
	c, _ := s.Owner().(*client)
	return c
}

// tasks are a client's tasks by the handle of the queue pair. A handle is also the number of a
// bit in the doorbell page's bitmap: a row holds the tasks of one word there.
type tasks []*row

type row [64]*task

// noTasks is the row of a word that no queue pair has a bit in.
var noTasks row

// row is the row for a word of the bitmap; it is not to be changed.
func (l tasks) row(word int) *row {
	if word < len(l) && l[word] != nil {
		return l[word]
	}
	return &noTasks
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
		*r = nil // handles are used again late, so it would be empty for long
	}
}

var (
	_ nic.Owner        = (*task)(nil)
	_ nic.SessionOwner = (*client)(nil)
)
