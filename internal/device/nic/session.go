package nic

import (
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"vrdma.dev/vrdma/internal/budget"
	"vrdma.dev/vrdma/internal/client/protocol"
	"vrdma.dev/vrdma/internal/device/fault"
	"vrdma.dev/vrdma/internal/device/memory"
)

// SessionOptions describe the client behind a session.
type SessionOptions struct {
	Arena   *Arena
	Space   *memory.Space
	Pid     int
	User    int // the user whose turns and threads it uses: a user ID, or -1 for the daemon's owner
	UID     int // the process's user ID
	Program string
	// Account is charged for the session's objects; nil: nothing is charged.
	Account *budget.Account
}

// A Session is one open of the device: the owner of objects, named by handles that
// mean nothing to any other session.
type Session struct {
	SessionOptions
	nic    *NIC
	tenant *tenant
	opened time.Time

	pds      table[*PD]
	cqs      table[*CQ]
	qps      table[*QP]
	srqs     table[*SRQ]
	mrs      table[*MR]
	mws      table[*MW]
	ahs      table[*AH]
	channels table[*eventQueue]

	async   *eventQueue
	closed  bool
	trouble trouble
	waiting waiting

	stalls int // copies that stopped the loop and could not be made aside, see aside.go

	// See fault.go.
	faults    []*fault.Plan // of the NIC and of the process
	ownFaults *fault.Plan   // of the process; nil: it has none
	down      bool          // its port is down
	fatal     bool          // its device is gone

	remainder, modulus uint32 // see SetNumbers

	owner SessionOwner // nil: no loop serves it
	loop  *Loop        // that has what the session has; nil: none had yet
}

// Open makes a session.
func (n *NIC) Open(o SessionOptions) (*Session, error) {
	l, a := &n.Limits, o.Account
	s := &Session{
		SessionOptions: o, nic: n, opened: time.Now(),
		pds: newTable[*PD](l.PDs, handles, syscall.EINVAL, a, pdBill), cqs: newTable[*CQ](l.CQs, uint32(max(l.CQs, cqHandles)), syscall.EINVAL, a, cqBill),
		qps: newTable[*QP](l.QPs, doorbells, syscall.EINVAL, a, qpBill), srqs: newTable[*SRQ](l.SRQs, handles, syscall.EINVAL, a, srqBill),
		mrs: newTable[*MR](l.MRs, handles, syscall.ENOMEM, a, mrBill), mws: newTable[*MW](l.MWs, handles, syscall.EINVAL, a, mwBill),
		ahs: newTable[*AH](l.AHs, handles, syscall.EINVAL, a, ahBill), channels: newTable[*eventQueue](l.Channels, handles, syscall.EMFILE, a, channelBill),
	}
	s.waiting.open(o.Arena)
	n.sessions[s] = struct{}{}
	s.joinFaults()
	return s, nil
}

// Close destroys everything the session has, in an order that leaves nothing
// dangling: queue pairs first, for they use the rest.
func (s *Session) Close() {
	if s.closed {
		return
	}
	s.closed = true
	s.Arena.dying = true
	s.qps.each(func(h uint32, q *QP) { q.detachAll(); q.destroy() })
	s.srqs.each(func(h uint32, q *SRQ) { q.ring.release() })
	s.cqs.each(func(h uint32, c *CQ) { c.ring.release() })
	s.mws.each(func(h uint32, w *MW) { w.free() })
	s.mrs.each(func(h uint32, m *MR) { m.free() })
	s.channels.each(func(h uint32, q *eventQueue) { q.close() })
	s.ahs.each(func(uint32, *AH) {})
	s.pds.each(func(uint32, *PD) {})
	if s.async != nil {
		s.async.close()
		s.Account.Refund(deviceBill)
	}
	delete(s.nic.sessions, s)
	if s.loop != nil {
		s.loop.foreign.leave(s)
		s.loop.waiters.forget(s)
	}
}

// Closed reports whether the session was closed.
func (s *Session) Closed() bool { return s.closed }

// CloseLost is Close for a session whose arena cannot be read or written any more.
func (s *Session) CloseLost() {
	s.Arena.lost = true
	s.Close()
}

// QP finds a queue pair by handle; nil if there is none.
func (s *Session) QP(handle uint32) *QP {
	q, _ := s.qps.get(handle)
	return q
}

// QPs is how many queue pairs there are.
func (s *Session) QPs() int { return s.qps.len() }

// EachQP calls f for every queue pair.
func (s *Session) EachQP(f func(*QP)) { s.qps.walk(func(_ uint32, q *QP) { f(q) }) }

// CreateAsync gives the session a sink for asynchronous events. open opens it, if it may
// have one.
func (s *Session) CreateAsync(open func() (EventSink, error)) error {
	if s.async != nil {
		return syscall.EINVAL
	}
	if err := s.Account.Charge(deviceBill); err != nil {
		return err
	}
	sink, err := open()
	if err != nil {
		s.Account.Refund(deviceBill)
		return syscall.EMFILE
	}
	s.async = newEventQueue(s, sink)
	return nil
}

// CreateChannel makes a completion channel and returns its name. open opens its sink, if
// there may be one more. No command ends a channel, so this is when those that were closed
// go.
func (s *Session) CreateChannel(open func() (EventSink, error)) (uint32, error) {
	s.sweepChannels()
	// The handle comes first, because adding it charges the account: if that fails, no descriptor
	// is made.
	q := newEventQueue(s, nil)
	id, err := s.channels.add(q)
	if err != nil {
		return 0, err
	}
	if q.sink, err = open(); err != nil {
		s.channels.remove(id)
		return 0, syscall.EMFILE
	}
	return id, nil
}

// sweepChannels ends the channels that the client has closed. They are asked in one system
// call: a client that makes channels all the time has a thousand, and this is the loop.
func (s *Session) sweepChannels() {
	names := make([]uint32, 0, s.channels.len())
	ends := make([]unix.PollFd, 0, s.channels.len())
	s.channels.walk(func(h uint32, q *eventQueue) {
		if q.cqs == 0 {
			names = append(names, h)
			ends = append(ends, unix.PollFd{Fd: int32(q.sink.HangupFd())})
		}
	})
	if n, err := unix.Poll(ends, 0); err != nil || n == 0 {
		return
	}
	for i, h := range names {
		if ends[i].Revents&unix.POLLHUP != 0 {
			q, _ := s.channels.get(h)
			q.close()
			s.channels.remove(h)
		}
	}
}

// PD is a protection domain: a ring fence around keys and queue pairs.
type PD struct {
	serial uint32
	refs   int
}

// AllocPD makes a protection domain.
func (s *Session) AllocPD() (uint32, error) { return s.pds.add(&PD{serial: s.nic.Serial()}) }

// DeallocPD ends one that nothing uses.
func (s *Session) DeallocPD(h uint32) error {
	pd, err := s.pds.get(h)
	if err != nil {
		return err
	}
	if pd.refs > 0 {
		return syscall.EBUSY
	}
	s.pds.remove(h)
	return nil
}

// A table names objects of one kind by small handles. Handles are reused late, so
// that a stale one is more likely to be refused than to hit something else.
type table[T any] struct {
	items   map[uint32]T
	next    uint32
	limit   int // at most space
	space   uint32
	full    syscall.Errno // what rxe answers when there are limit objects
	account *budget.Account
	price   budget.Bill // of one object
}

const (
	// doorbells is how many queue pair handles there are: a handle is also a bit
	// in the doorbell page.
	doorbells = protocol.DoorbellBits
	handles   = 1 << 20
)

func newTable[T any](limit int, space uint32, full syscall.Errno, a *budget.Account, price budget.Bill) table[T] {
	// add relies on it: with more objects than handles it would search for ever.
	limit = min(limit, int(space))
	return table[T]{items: make(map[uint32]T), limit: limit, space: space, full: full, account: a, price: price}
}

// add names v, unless the session has as many as it may.
func (t *table[T]) add(v T) (uint32, error) {
	if len(t.items) >= t.limit {
		return 0, t.full
	}
	if err := t.account.Charge(t.price); err != nil {
		return 0, err
	}
	for {
		h := t.next
		t.next = (t.next + 1) % t.space
		if _, taken := t.items[h]; !taken {
			t.items[h] = v
			return h, nil
		}
	}
}

// get finds the object; ENOENT as uverbs says for a handle that is not there.
func (t *table[T]) get(h uint32) (T, error) {
	v, ok := t.items[h]
	if !ok {
		return v, syscall.ENOENT
	}
	return v, nil
}

func (t *table[T]) remove(h uint32) {
	if _, ok := t.items[h]; ok {
		delete(t.items, h)
		t.account.Refund(t.price)
	}
}

func (t *table[T]) len() int { return len(t.items) }

func (t *table[T]) each(f func(uint32, T)) {
	for h, v := range t.items {
		f(h, v)
		t.remove(h)
	}
}

// walk calls f for each object; unlike each, it removes none.
func (t *table[T]) walk(f func(uint32, T)) {
	for h, v := range t.items {
		f(h, v)
	}
}
