package nic

import (
	"vrdma.dev/vrdma/internal/device/memory"
	"vrdma.dev/vrdma/internal/device/transport"
	"vrdma.dev/vrdma/internal/ib"
)

// Ownership. Nothing in this package is locked: every object belongs to one loop, and only that
// loop accesses it.
//
//	loop ── SessionOwner ◀── Session ── PD, MR, MW, CQ, SRQ, AH, event channels
//	  └──── Owner ◀───────── QP ─────── its rings, its state machine
//
// The owners are the loop's own records of a session and of a queue pair; this package knows
// only the interfaces. So there may be several loops: a session moves to another loop when it
// gets another SessionOwner (MoveTo), which adopts its queue pairs.
//
// Sessions whose queue pairs are connected to each other are on the same loop (engine/loops.go). So a
// queue pair sends a burst to its peer, writes a completion to a CQ and takes a receive from an SRQ
// without a check of their loop.
//
// The tables of queue pair numbers, keys and groups belong to the NIC, not to a session. All loops read
// them on the data path. Only commands change them, and no loop runs during a command. Counters that
// change on the data path are in a Part for each loop.

// Owner is the loop as one of its queue pairs sees it. The loop makes one for each.
type Owner interface {
	// Sender carries bursts away.
	transport.Sender
	// Connect says which addresses the queue pair has from now on, its own and its
	// peer's, and returns what the state machine has to know of the path.
	Connect(sgid, dgid *ib.GID) transport.Path
	// Disconnect says that it has none any more.
	Disconnect()
	// Wake says that the queue pair was changed, or has something to do, outside the
	// loop's own calls. Every change of state ends with it.
	Wake()
	// Forget says that it is gone: nothing about it may be remembered.
	Forget()
	// Join says that the queue pair is the first of its NIC that is attached to a
	// group, and Leave that it was the last.
	Join(group ib.GID) error
	Leave(group ib.GID)
	// Now is the loop's clock.
	Now() ib.Time
}

// SessionOwner is the loop as a session sees it.
type SessionOwner interface {
	// Adopt makes the owner of a new queue pair of the session.
	Adopt(q *QP) Owner
	// Loop is what the queue pairs of the loop share.
	Loop() *Loop
	// Now is the loop's clock.
	Now() ib.Time
}

// A Loop is the part of a loop's state that this package works with: scratch space for the call in
// progress, the sessions that need attention, the jobs on foreign memory. The loop makes one, for all
// NICs that it serves.
type Loop struct {
	copier  memory.Copier
	scratch memory.Span // destination of the copy in progress
	work    transport.Scratch

	// Sessions that have to be looked after, see trouble.go.
	troubled, visiting sessionList

	foreign foreign

	waiters waiters
	kept    keptEvents

	completions []heldCompletion // see fault.go
}

// NewLoop makes one. rouse has the loop call CollectForeign soon; any goroutine may call it.
func NewLoop(rouse func()) *Loop {
	l := &Loop{}
	l.foreign.init(rouse)
	return l
}

// Scratch is the working storage of the call in progress.
func (l *Loop) Scratch() *transport.Scratch { return &l.work }

// SetOwner says which loop serves the session; nil: none does any more. What the session has
// stays with the loop that it had.
func (s *Session) SetOwner(o SessionOwner) {
	s.owner = o
	if o == nil || s.loop == o.Loop() {
		return
	}
	if s.loop != nil {
		s.loop.foreign.leave(s)
	}
	s.loop = o.Loop()
	s.tenant = s.loop.foreign.tenant(s)
}

// Owner is the loop's record of the session; nil: no loop serves it.
func (s *Session) Owner() SessionOwner { return s.owner }

// Served reports whether a loop serves the session. A fault in the session's memory ends that, and so does a device
// that fails on purpose.
func (s *Session) Served() bool { return s.owner != nil && !s.fatal }

// Owner is the loop's record of the queue pair.
func (q *QP) Owner() Owner { return q.owner }

// NIC is the device that the session has open.
func (s *Session) NIC() *NIC { return s.nic }
