package cm

import (
	"container/heap"

	"vrdma.dev/vrdma/internal/ib"
	"vrdma.dev/vrdma/internal/net/wire"
)

// Env is what the manager needs around it. None of its methods may call back into
// the manager, except that Request and Question may call Reject.
type Env interface {
	// Send sends a MAD from one of our addresses to queue pair 1 at another. It may be
	// lost. The host keeps no reference to mad.
	Send(from, to ib.GID, mad wire.MAD)
	// Request: somebody wants a connection. The host sets c.Owner and returns 0, or
	// returns the reason of the REJ. p is what the peer said, as it concerns us.
	Request(c *Conn, p *Params) (reason uint16)
	// Question: somebody asks which queue pair offers a service. Like Request; what
	// it returns is a status.
	Question(c *Conn, private []byte) (status uint8)
	// Notify: something happened to a connection with an owner.
	Notify(c *Conn, e *Event)
}

// Config is what a Manager is born with.
type Config struct {
	GUID   uint64 // of our device
	Random func() uint32
	Env    Env
	// Changed is called when a connection has another state, and so are other fields of it
	// that its owner sees; nil: nobody cares.
	Changed func(*Conn)
	// Due is called when Deadline is another, and not never; nil: who cares asks Deadline.
	Due func(ib.Time)
}

// Manager knows every connection of one device.
type Manager struct {
	Config
	conns     map[uint32]*Conn // by LocalID
	byRemote  map[remote]*Conn // passive ones, by the peer's name for them
	byQP      map[peerQP]*Conn // by the peer's queue pair
	questions map[question]*Conn
	timers    deadlines
	next      uint32
}

// New makes a manager that knows nobody.
func New(c Config) *Manager {
	return &Manager{
		Config: c, next: c.Random(),
		conns: make(map[uint32]*Conn), byRemote: make(map[remote]*Conn), byQP: make(map[peerQP]*Conn),
		questions: make(map[question]*Conn),
	}
}

// Len returns how many connections are known, those in TimeWait included.
func (m *Manager) Len() int { return len(m.conns) }

// Each calls f for every connection.
func (m *Manager) Each(f func(*Conn)) {
	for _, c := range m.conns {
		f(c)
	}
}

const (
	// responseTimeout is the code of the time in which either side has to answer,
	// and maxRetries how often a message is repeated: rdma_cm's values.
	responseTimeout = 20
	maxRetries      = 15
	// mraTimeout is the code of the time for which we ask patience.
	mraTimeout = 24
	// orphanRetries is how often a DREQ is repeated whose owner is gone.
	orphanRetries = 3
	// minInterval bounds the haste that a peer can ask of us.
	minInterval = ib.Time(100e6)
	// maxSpan bounds every code that a peer names: 2^25 × 4.096 µs is 137 s.
	maxSpan = 25
)

// span returns the time that a code stands for: 4.096 µs × 2^code.
func span(code uint8) ib.Time { return ib.Time(4096) << min(code, maxSpan) }

// firstPause is how long the first repetition waits: answers take microseconds, or as
// long as a program thinks, and then an MRA comes.
const firstPause = ib.Time(500e6)

// pause returns how long to wait for an answer before the message is repeated: each time
// longer, up to what the two sides have promised each other.
func (c *Conn) pause() ib.Time { return min(c.interval, firstPause<<min(c.tries, 16)) }

// newConn makes a connection with a fresh name.
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

// enter has a connection in another state.
func (m *Manager) enter(c *Conn, s State) {
	c.State = s
	if m.Changed != nil {
		m.Changed(c)
	}
}

// forget ends a connection.
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
}

func (m *Manager) linkQP(c *Conn) {
	if c.RemoteQPN != 0 {
		m.byQP[peerQP{c.Path.DGID, c.RemoteQPN}] = c
	}
}

// WithQP finds the connection with a peer's queue pair, unless it is over; nil: there is none.
func (m *Manager) WithQP(peer ib.GID, qpn uint32) *Conn { return m.byQP[peerQP{peer, qpn}] }

func (m *Manager) unlinkQP(c *Conn) {
	if k := (peerQP{c.Path.DGID, c.RemoteQPN}); m.byQP[k] == c {
		delete(m.byQP, k)
	}
}

// linger keeps a connection that is over until nothing of it can be under way.
func (m *Manager) linger(now ib.Time, c *Conn) {
	m.enter(c, TimeWait)
	m.unlinkQP(c) // the peer may use its queue pair again
	m.await(c, nil, now+span(max(c.Path.AckTimeout, 12)))
}

// ---- deadlines ----

// await files c: message, if there is one, is repeated from deadline on until
// somebody files c anew. A deadline of 0 is never.
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

// Deadline returns when Expire has to be called; 0 is never.
func (m *Manager) Deadline() ib.Time {
	if len(m.timers) == 0 {
		return 0
	}
	return m.timers[0].deadline
}

// expireAtOnce bounds what one Expire does: the loop that calls it serves others besides.
const expireAtOnce = 8

// Expire does what is due. If that is much it does the first of it; then Deadline has passed
// still, and Expire has to be called again.
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
		// The REQ may have arrived and the answers been lost: tell the peer.
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

// end forgets c, and tells its owner.
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
