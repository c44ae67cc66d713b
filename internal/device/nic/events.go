package nic

import (
	"encoding/binary"
	"slices"

	"vrdma.dev/vrdma/internal/abi"
	"vrdma.dev/vrdma/internal/budget"
)

// An EventSink brings events to a client: one for its asynchronous events, and one for each
// completion channel. It is called on the loop, and never waits. For a process it is a
// socket pair (package eventfile), of which the process has a descriptor; a virtual
// machine's will send messages to an agent there.
type EventSink interface {
	// Post hands over the first n bytes of an event; false if the sink is full. An event that
	// the client will not read any more is dropped.
	Post(event [16]byte, n int) bool
	// Withdraw takes back the first event that the client has not read; n is 0 if there
	// is none. Destroying an object takes back its events, as the kernel does, and
	// reports how many the client has read.
	Withdraw() (event [16]byte, n int)
	// HangupFd is a descriptor of which poll reports a hang-up when the client reads no
	// more. It is asked for many sinks in one call. -1: there is none, and the sink lives
	// as long as the session.
	HangupFd() int
	Close()
}

// An eventQueue holds the events for a sink that is full.
type eventQueue struct {
	session *Session
	sink    EventSink
	waiting []event
	cqs     int // completion queues that report here
	stalled bool
	next    *eventQueue // behind it among the stalled
	closed  bool
	account *budget.Account // the reader's
}

// An event is what a queue holds: the bytes as the client reads them.
type event struct {
	b [16]byte
	n int
}

// Sizes of events.
const (
	compEventSize  = 8
	asyncEventSize = 16
)

// compEvent is struct ib_uverbs_comp_event_desc.
func compEvent(userHandle uint64) (e event) {
	binary.NativeEndian.PutUint64(e.b[:], userHandle)
	e.n = compEventSize
	return e
}

// asyncEvent is struct ib_uverbs_async_event_desc.
func asyncEvent(userHandle uint64, kind uint32) (e event) {
	binary.NativeEndian.PutUint64(e.b[:], userHandle)
	binary.NativeEndian.PutUint32(e.b[8:], kind)
	e.n = asyncEventSize
	return e
}

func (e *event) element() uint64 { return binary.NativeEndian.Uint64(e.b[:]) }

// asyncOwner is which of the kinds of object an async event is about: user
// handles of a CQ and a QP may be equal, their events are not.
func (e *event) asyncOwner() byte {
	switch binary.NativeEndian.Uint32(e.b[8:]) {
	case abi.EventCQErr:
		return 'c'
	case abi.EventSRQErr, abi.EventSRQLimitReached:
		return 's'
	case abi.EventGIDChange, abi.EventPortErr, abi.EventPortActive, abi.EventDeviceFatal:
		return 'p'
	}
	return 'q'
}

func newEventQueue(s *Session, sink EventSink) *eventQueue {
	return &eventQueue{session: s, sink: sink, account: s.Account}
}

func (q *eventQueue) close() {
	if q == nil || q.closed {
		return
	}
	q.closed = true
	q.sink.Close()
	q.forget()
}

// forget drops every event that waits.
func (q *eventQueue) forget() {
	q.refund(len(q.waiting))
	q.waiting = nil
}

// refund refunds the charge for n events.
func (q *eventQueue) refund(n int) {
	if n > 0 {
		q.account.Refund(budget.Bill{budget.State: uint64(n) * eventBill[budget.State]})
	}
}

// maxWaiting bounds the events kept for a client that does not read: beyond, it loses
// its own.
const maxWaiting = 1 << 16

// post sends an event: now, or when the loop comes to it.
func (q *eventQueue) post(e event) {
	if q == nil || q.closed {
		return
	}
	if l := q.session.loop; l != nil && l.keep(q, e) {
		return
	}
	q.send(e)
}

// send sends an event, or keeps it until the client has read others.
func (q *eventQueue) send(e event) {
	if q.closed {
		return
	}
	if len(q.waiting) == 0 {
		if q.sink.Post(e.b, e.n) {
			return
		}
	}
	if len(q.waiting) >= maxWaiting || q.account.Charge(eventBill) != nil {
		return
	}
	q.waiting = append(q.waiting, e)
	q.session.trouble.stall(q)
}

// pumpEvents is how many events one pump sends.
const pumpEvents = 8

// pump sends some of what waits and reports whether the sink is full.
func (q *eventQueue) pump() (full bool) {
	for i := 0; i < pumpEvents && len(q.waiting) > 0; i++ {
		e := &q.waiting[0]
		if !q.sink.Post(e.b, e.n) {
			return true
		}
		q.waiting = q.waiting[1:]
		q.account.Refund(eventBill)
	}
	if len(q.waiting) == 0 {
		q.waiting = nil
	}
	return false
}

// withdraw takes back the unread events for which mine is true and returns their
// number. sent is how many there have been: to look for them takes many calls, and most
// objects have had none.
func (q *eventQueue) withdraw(sent uint32, mine func(*event) bool) (n uint32) {
	if q == nil || q.closed || sent == 0 {
		return 0
	}
	if l := q.session.loop; l != nil {
		l.sendKept()
	}
	// The channel holds a few hundred events. Those of other objects are posted again. They fit,
	// because only the loop writes.
	var keep []event
	for {
		b, k := q.sink.Withdraw()
		if k == 0 {
			break
		}
		if e := (event{b, k}); mine(&e) {
			n++
		} else {
			keep = append(keep, e)
		}
	}
	for _, e := range keep {
		q.sink.Post(e.b, e.n)
	}
	// Tens of thousands may wait: they are neither sent nor charged again.
	before := len(q.waiting)
	q.waiting = slices.DeleteFunc(q.waiting, func(e event) bool { return mine(&e) })
	q.refund(before - len(q.waiting))
	n += uint32(before - len(q.waiting))
	return n
}
