package nic

import (
	"slices"
	"time"

	"vrdma.dev/vrdma/internal/abi"
	"vrdma.dev/vrdma/internal/device/fault"
	"vrdma.dev/vrdma/internal/ib"
)

// Faults on purpose, see package fault. A NIC has the plans of its declared Faults, and a session those and the plan of
// its process. Without plans each question costs the test of a length.
//
// The engine asks about packets and events. This file asks about registrations and completions, and does what rules
// want of a device. Everything here runs on the loop.

// faults are what a NIC has of them.
type faults struct {
	plans []*fault.Plan
	rows  []int // before the addresses moved to other rows of the GID table
	moved bool
}

// SetFaults replaces the plans of the NIC's declared Faults.
func (n *NIC) SetFaults(plans []*fault.Plan) {
	n.faults.plans = plans
	for s := range n.sessions {
		s.joinFaults()
	}
}

// Faults returns the plans of the NIC. The caller does not change the list.
func (n *NIC) Faults() []*fault.Plan { return n.faults.plans }

// SetFaults sets the plan of the session's process.
func (s *Session) SetFaults(p *fault.Plan) {
	s.ownFaults = p
	s.joinFaults()
}

func (s *Session) joinFaults() {
	s.faults = s.nic.faults.plans
	if s.ownFaults != nil {
		s.faults = append(slices.Clone(s.faults), s.ownFaults)
	}
}

// Faults returns the plans of the session: those of its NIC and that of its process.
func (s *Session) Faults() []*fault.Plan { return s.faults }

// Faulty reports whether something of the session fails on purpose, or has.
func (s *Session) Faulty() bool { return len(s.faults) > 0 || s.down || s.fatal }

// fails reports whether a registration fails on purpose.
func (s *Session) fails() (fails bool) {
	for _, p := range s.faults {
		fails = p.RegMR(time.Duration(s.now()), fault.Packet{Pid: s.Pid, Device: s.nic.Name}) || fails
	}
	return fails
}

// A heldCompletion waits until it is due.
type heldCompletion struct {
	due ib.Time
	cq  *CQ
	w   completion
}

// holdBack keeps a completion of q if a rule wants that, or if an earlier one of its queue is kept.
func (l *Loop) holdBack(q *QP, c *CQ, w *completion) bool {
	now := q.owner.Now()
	due := now
	for _, p := range q.session.faults {
		if p.Holds() {
			due = max(due, now+ib.Time(p.Completion(time.Duration(now), fault.Packet{QP: q.num, Pid: q.session.Pid, Device: q.nic.Name})))
		}
	}
	if due = max(due, c.heldUntil); due <= now && c.held == 0 {
		return false
	}
	c.heldUntil = due
	c.held++
	l.completions = append(l.completions, heldCompletion{due, c, *w})
	return true
}

// CompletionsDue is when the loop has to call ReleaseCompletions; 0: never.
func (l *Loop) CompletionsDue() (at ib.Time) {
	for i := range l.completions {
		if d := l.completions[i].due; at == 0 || d < at {
			at = d
		}
	}
	return at
}

// ReleaseCompletions writes the completions that are due.
func (l *Loop) ReleaseCompletions(now ib.Time) {
	list := l.completions
	l.completions = nil
	for i := range list {
		h := &list[i]
		switch {
		case h.cq.gone || h.cq.session.closed || !h.cq.session.Served():
		case h.due > now:
			l.completions = append(l.completions, *h)
		default:
			h.cq.held--
			h.cq.push(&h.w)
		}
	}
}

// ExceedRetries fails the oldest request of the queue pair, if there is one.
func (q *QP) ExceedRetries() {
	if q.tr.ExceedRetries(q.owner.Now(), &q.env) {
		q.publish()
		q.NoteError()
		q.owner.Wake()
	}
}

// Happen does what a rule wants of the device: for one session, or for all of the NIC if s is nil.
func (n *NIC) Happen(s *Session, e fault.Event) {
	switch e.Action {
	case fault.DeviceFatal:
		if !e.Over {
			n.each(s, (*Session).perish)
		}
	case fault.PortDown:
		kind := uint32(abi.EventPortErr)
		if e.Over {
			kind = abi.EventPortActive
		}
		if s == nil {
			f := *n.Face()
			f.Down = !e.Over
			n.face.Store(&f)
		}
		n.each(s, func(s *Session) {
			s.down = !e.Over
			s.async.post(asyncEvent(thePort, kind))
		})
	case fault.GIDChange:
		if s != nil {
			s.async.post(asyncEvent(thePort, abi.EventGIDChange))
			return
		}
		n.moveGIDs(!e.Over)
	}
}

func (n *NIC) each(s *Session, f func(*Session)) {
	if s != nil {
		f(s)
		return
	}
	for s := range n.sessions {
		f(s)
	}
}

// moveGIDs moves the addresses by one row in the GID table, or back.
func (n *NIC) moveGIDs(away bool) {
	if n.faults.moved == away {
		return
	}
	f := *n.Face()
	if away {
		n.faults.rows = f.Rows
		rows := make([]int, len(f.GIDs))
		for i := range rows {
			rows[i] = f.Row(i) + 1
		}
		f.Rows = rows
	} else {
		f.Rows = n.faults.rows
		if f.Rows != nil && len(f.Rows) != len(f.GIDs) {
			f.Rows = nil // the addresses have changed meanwhile
		}
	}
	n.faults.moved = away
	n.SetFace(f)
}

// perish is the end of a device: every queue pair fails, and every command returns EIO.
func (s *Session) perish() {
	s.async.post(asyncEvent(0, abi.EventDeviceFatal))
	s.qps.walk(func(_ uint32, q *QP) { q.Fail() })
	s.fatal = true
}

// Down reports whether the port is down on purpose.
func (s *Session) Down() bool { return s.down || s.nic.Face().Down }
