package nic

import (
	"encoding/binary"
	"fmt"
	"slices"

	"golang.org/x/sys/unix"

	"vrdma/internal/abi"
	"vrdma/internal/budget"
)

// An eventQueue carries events to a client through a real file descriptor, one
// event a message, so that poll, epoll and O_NONBLOCK work on it unhooked.
//
// The daemon keeps a duplicate of the client's end: destroying an object must take
// back the events that nobody has read, as the kernel does, and report how many
// were.
type eventQueue struct {
	session *Session
	fd      int // our end, non-blocking
	peer    int // duplicate of the client's end
	waiting []event
	cqs     int // completion queues that report here
	stalled bool
	next    *eventQueue // behind it among the stalled
	closed  bool
	account *budget.Account // of who reads
}

// An event is what a queue holds: the bytes as the client reads them.
type event struct {
	b [16]byte
	n int
}

// compEvent is struct ib_uverbs_comp_event_desc.
func compEvent(userHandle uint64) (e event) {
	binary.NativeEndian.PutUint64(e.b[:], userHandle)
	e.n = 8
	return e
}

// asyncEvent is struct ib_uverbs_async_event_desc.
func asyncEvent(userHandle uint64, kind uint32) (e event) {
	binary.NativeEndian.PutUint64(e.b[:], userHandle)
	binary.NativeEndian.PutUint32(e.b[8:], kind)
	e.n = 16
	return e
}

func (e *event) element() uint64 { return binary.NativeEndian.Uint64(e.b[:]) }

// asyncOwner is which of the three kinds of object an async event is about: user
// handles of a CQ and a QP may be equal, their events are not.
func (e *event) asyncOwner() byte {
	switch binary.NativeEndian.Uint32(e.b[8:]) {
	case abi.EventCQErr:
		return 'c'
	case abi.EventSRQErr, abi.EventSRQLimitReached:
		return 's'
	}
	return 'q'
}

// newEventQueue makes a queue and returns the client's end besides.
func (s *Session) newEventQueue() (*eventQueue, int, error) {
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, -1, fmt.Errorf("event descriptor: %w", err)
	}
	peer, err := unix.FcntlInt(uintptr(fds[1]), unix.F_DUPFD_CLOEXEC, 0)
	if err == nil {
		err = unix.SetNonblock(fds[0], true)
	}
	if err != nil {
		unix.Close(fds[0])
		unix.Close(fds[1])
		return nil, -1, fmt.Errorf("event descriptor: %w", err)
	}
	return &eventQueue{session: s, fd: fds[0], peer: peer, account: s.Account}, fds[1], nil
}

func (q *eventQueue) close() {
	if q == nil || q.closed {
		return
	}
	q.closed = true
	unix.Close(q.fd)
	unix.Close(q.peer)
	q.forget()
}

// forget drops every event that waits.
func (q *eventQueue) forget() {
	q.refund(len(q.waiting))
	q.waiting = nil
}

// refund gives back what n events were charged.
func (q *eventQueue) refund(n int) {
	if n > 0 {
		q.account.Refund(budget.Bill{budget.State: uint64(n) * eventBill[budget.State]})
	}
}

// maxWaiting bounds the events kept for a client that does not read: beyond, it loses
// its own.
const maxWaiting = 1 << 16

// post sends an event, or keeps it until the client has read others.
func (q *eventQueue) post(e event) {
	if q == nil || q.closed {
		return
	}
	if len(q.waiting) == 0 {
		if _, err := unix.Write(q.fd, e.b[:e.n]); err != unix.EAGAIN {
			return
		}
	}
	if len(q.waiting) >= maxWaiting || q.account.Charge(eventBill) != nil {
		return
	}
	q.waiting = append(q.waiting, e)
	q.session.stall(q)
}

// pumpEvents is how many events one pump sends.
const pumpEvents = 8

// pump sends some of what waits and reports whether the channel is full.
func (q *eventQueue) pump() (full bool) {
	for i := 0; i < pumpEvents && len(q.waiting) > 0; i++ {
		e := &q.waiting[0]
		if _, err := unix.Write(q.fd, e.b[:e.n]); err == unix.EAGAIN {
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
	// The channel holds a few hundred. Those of others go back, for which there is room
	// now: nobody but us writes.
	var keep []event
	for {
		var e event
		k, _, err := unix.Recvfrom(q.peer, e.b[:], unix.MSG_DONTWAIT)
		if err != nil || k <= 0 {
			break
		}
		e.n = k
		if mine(&e) {
			n++
		} else {
			keep = append(keep, e)
		}
	}
	for i := range keep {
		if _, err := unix.Write(q.fd, keep[i].b[:keep[i].n]); err != nil {
			break // the client has hung up
		}
	}
	// Tens of thousands may wait: they are neither sent nor charged again.
	before := len(q.waiting)
	q.waiting = slices.DeleteFunc(q.waiting, func(e event) bool { return mine(&e) })
	q.refund(before - len(q.waiting))
	n += uint32(before - len(q.waiting))
	return n
}
