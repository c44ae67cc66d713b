package cm

import (
	"container/heap"

	"vrdma.dev/vrdma/internal/ib"
	"vrdma.dev/vrdma/internal/net/wire"
)

// Env is the manager's environment. Its methods must not call back into the manager, except that Request and Question may call Reject.
type Env interface {
	// Send sends a MAD from one of our addresses to queue pair 1 at another. It may be lost. Env keeps no reference to mad.
	Send(from, to ib.GID, mad wire.MAD)
	// Request handles a connection request. It sets c.Owner and returns 0, or returns the reason for a REJ. p are the peer's
	// parameters, from this side's point of view.
	Request(c *Conn, p *Params) (reason uint16)
	// Question handles a SIDR request, like Request; it returns a status.
	Question(c *Conn, private []byte) (status uint8)
	// Notify handles an event of a connection with an owner.
	Notify(c *Conn, e *Event)
}

// Config is the configuration of a Manager.
type Config struct {
	GUID   uint64 // GUID of our device
	Random func() uint32
	Env    Env
	// Changed is called when the state of a connection, and other fields that its owner sees, have changed; may be nil.
	Changed func(*Conn)
	// Due is called when Deadline changes to a time other than never; if it is nil, the caller polls Deadline.
	Due func(ib.Time)
	// Dropped is called before a connection without an owner is dropped because there are too many; may be nil.
	Dropped func(*Conn)
}

// Manager has all connections of one device.
type Manager struct {
	Config
	conns     map[uint32]*Conn // by LocalID
	byRemote  map[remote]*Conn // passive connections, by the peer's identification
	byQP      map[peerQP]*Conn // by the peer's queue pair
	questions map[question]*Conn
	leaving   orphans // in DreqSent
	ended     orphans // in TimeWait
	timers    deadlines
	next      uint32
}

// New returns a manager without connections.
func New(c Config) *Manager {
	return &Manager{
		Config: c, next: c.Random(),
		conns: make(map[uint32]*Conn), byRemote: make(map[remote]*Conn), byQP: make(map[peerQP]*Conn),
		questions: make(map[question]*Conn),
		leaving:   newOrphans(maxLeaving, maxLeaving), ended: newOrphans(maxEnded, maxEndedOf),
	}
}

// Len returns the number of connections, including those in TimeWait.
func (m *Manager) Len() int { return len(m.conns) }

// Each calls f for every connection.
func (m *Manager) Each(f func(*Conn)) {
	for _, c := range m.conns {
		f(c)
	}
}

const (
	// responseTimeout is the code of the time limit for answers of either side, and maxRetries the maximum number of repetitions, both
	// as in rdma_cm.
	responseTimeout = 20
	maxRetries      = 15
	// mraTimeout is the code of the time that our MRAs request.
	mraTimeout = 24
	// orphanRetries is the maximum number of repetitions of a DREQ without an owner.
	orphanRetries = 3
	// minInterval is the shortest interval between repetitions that a peer can request.
	minInterval = ib.Time(100e6)
	// maxSpan limits every time code of a peer: 2^25 × 4.096 µs is 137 s.
	maxSpan = 25
)

// span returns the time of a code: 4.096 µs × 2^code.
func span(code uint8) ib.Time { return ib.Time(4096) << min(code, maxSpan) }

// firstPause is the time before the first repetition: answers take microseconds, or an MRA arrives while the program decides.
const firstPause = ib.Time(500e6)

// pause returns the time to wait for an answer before the message is repeated. It grows with each repetition, up to the negotiated
// interval.
func (c *Conn) pause() ib.Time { return min(c.interval, firstPause<<min(c.tries, 16)) }

// newConn creates a connection with a new communication ID.
func (m *Manager) newConn() *Conn {
	for {
		m.next++
		if _, taken := m.conns[m.next]; !taken && m.next != 0 {
			break
		}
	}
	c := &Conn{LocalID: m.next, retries: maxRetries}
	c.interval = 2*span(18) + span(responseTimeout)
	m.conns[c.LocalID] = c
	return c
}

// enter changes the state of a connection.
func (m *Manager) enter(c *Conn, s State) {
	c.State = s
	if m.Changed != nil {
		m.Changed(c)
	}
}

// forget removes a connection.
func (m *Manager) forget(c *Conn) {
	m.await(c, nil, 0)
	m.enter(c, Closed)
	delete(m.conns, c.LocalID)
	if k := (remote{c.Path.DGID, c.RemoteID}); m.byRemote[k] == c {
		delete(m.byRemote, k)
	}
	if k := (question{c.Path.DGID, c.RemoteID}); m.questions[k] == c {
		delete(m.questions, k)
	}
	m.unlinkQP(c)
	m.leaving.remove(c.LocalID)
	m.ended.remove(c.LocalID)
}

func (m *Manager) linkQP(c *Conn) {
	if c.RemoteQPN != 0 {
		m.byQP[peerQP{c.Path.DGID, c.RemoteQPN}] = c
	}
}

// WithQP returns the connection with a peer's queue pair, or nil if there is none or it has ended.
func (m *Manager) WithQP(peer ib.GID, qpn uint32) *Conn { return m.byQP[peerQP{peer, qpn}] }

func (m *Manager) unlinkQP(c *Conn) {
	if k := (peerQP{c.Path.DGID, c.RemoteQPN}); m.byQP[k] == c {
		delete(m.byQP, k)
	}
}

// linger keeps an ended connection until no message of it can be in flight.
func (m *Manager) linger(now ib.Time, c *Conn) {
	m.enter(c, TimeWait)
	m.unlinkQP(c) // the peer may reuse its queue pair
	m.await(c, nil, now+span(max(c.Path.AckTimeout, 12)))
	m.limit(c)
}

// ---- deadlines ----

// await sets the deadline of c, replacing any earlier one. message, if not nil, is repeated from the deadline on. A deadline of 0 is
// never.
func (m *Manager) await(c *Conn, message wire.MAD, deadline ib.Time) {
	c.message, c.deadline = message, deadline
	switch {
	case deadline == 0 && c.slot != 0:
		heap.Remove(&m.timers, c.slot-1)
	case deadline != 0 && c.slot != 0:
		heap.Fix(&m.timers, c.slot-1)
	case deadline != 0:
		heap.Push(&m.timers, c)
	}
	if deadline != 0 && m.timers[0] == c && m.Due != nil {
		m.Due(deadline)
	}
}

// Deadline returns the time at which the caller must call Expire; 0 means never.
func (m *Manager) Deadline() ib.Time {
	if len(m.timers) == 0 {
		return 0
	}
	return m.timers[0].deadline
}

// expireAtOnce limits the work of one Expire, because the loop also serves others.
const expireAtOnce = 8

// Expire handles due deadlines, at most expireAtOnce. If there are more, Deadline stays in the past, and Expire must be called again.
func (m *Manager) Expire(now ib.Time) {
	for i := 0; i < expireAtOnce && len(m.timers) > 0 && m.timers[0].deadline <= now; i++ {
		m.expire(now, m.timers[0])
	}
}

func (m *Manager) expire(now ib.Time, c *Conn) {
	if c.message != nil && c.left > 0 {
		c.left--
		c.tries++
		m.Env.Send(c.Path.SGID, c.Path.DGID, c.message)
		m.await(c, c.message, now+c.pause())
		return
	}
	switch c.State {
	case ReqSent:
		// The REQ may have arrived and the answers been lost: send a REJ to the peer.
		m.reject(c, RejectTimeout, nil)
		m.end(c, Unreachable)
	case RepSent:
		m.reject(c, RejectTimeout, nil)
		m.end(c, Unreachable)
	case SidrReqSent:
		m.end(c, Unreachable)
	case DreqSent:
		m.notify(c, &Event{Kind: Vanished})
		m.linger(now, c)
	case TimeWait:
		m.end(c, Exited)
	default:
		m.await(c, nil, 0)
	}
}

// end removes c and notifies its owner.
func (m *Manager) end(c *Conn, k EventKind) {
	m.forget(c)
	m.notify(c, &Event{Kind: k})
}

func (m *Manager) notify(c *Conn, e *Event) {
	if c.Owner != nil {
		m.Env.Notify(c, e)
	}
}

// deadlines is a heap of connections.
type deadlines []*Conn

func (d deadlines) Len() int           { return len(d) }
func (d deadlines) Less(i, j int) bool { return d[i].deadline < d[j].deadline }
func (d deadlines) Swap(i, j int) {
	d[i], d[j] = d[j], d[i]
	d[i].slot, d[j].slot = i+1, j+1
}

// Push implements heap.Interface.
func (d *deadlines) Push(x any) {
	c := x.(*Conn)
	*d = append(*d, c)
	c.slot = len(*d)
}

// Pop implements heap.Interface.
func (d *deadlines) Pop() any {
	last := len(*d) - 1
	c := (*d)[last]
	(*d)[last] = nil
	*d = (*d)[:last]
	c.slot = 0
	return c
}
