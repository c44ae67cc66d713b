package nic

import (
	"slices"

	"vrdma.dev/vrdma/internal/device/transport"
	"vrdma.dev/vrdma/internal/ib"
)

// A session moves to another loop as an object: its rings, regions and state machines stay where they are. What changes
// is the loop's part: its records of the session and of the queue pairs, and the lists in Loop that name the session.

// Movable reports whether another loop can take the session. It cannot while a thread writes to its memory, or has
// written for a burst that is not taken: the loop that began it has to end it.
func (s *Session) Movable() bool {
	if s.closed || s.owner == nil || s.Space != nil && s.Space.Writing() {
		return false
	}
	ok := true
	s.qps.walk(func(_ uint32, q *QP) {
		ok = ok && (q.errands == nil || q.errands.of[taskTake].state == errandIdle)
	})
	return ok
}

// MoveTo gives a Movable session to another loop. The loop that has the session has removed its records. Both loops
// stand still.
func (s *Session) MoveTo(o SessionOwner) {
	from, to := s.loop, o.Loop()
	from.sendKept()
	listed := s.trouble.listed
	if listed {
		from.troubled.remove(s)
		from.visiting.remove(s)
		s.trouble.listed, s.trouble.visits = false, 0
	}
	owed := s.waiting.queued
	from.waiters.forget(s)
	from.foreign.drop(s)
	from.foreign.leave(s)
	from.foreign.asides.pass(s, &to.foreign.asides, o.Now())

	s.owner, s.loop = o, to
	s.tenant = to.foreign.tenant(s)
	for _, q := range s.qps.sorted() {
		q.owner, q.loop = o.Adopt(q), to
		q.env = transport.NewEnv((*qpNIC)(q), q.owner, to.Scratch())
		q.review(o.Now())
	}
	from.completions = slices.DeleteFunc(from.completions, func(h heldCompletion) bool {
		if h.cq.session != s {
			return false
		}
		to.completions = append(to.completions, h)
		return true
	})
	if listed {
		s.trouble.list(s)
	}
	if owed {
		s.waiting.queued = true
		to.waiters.queue = append(to.waiters.queue, s)
	}
}

// drop ends all that threads read for a session: the loop that takes the session reads it again.
func (f *foreign) drop(s *Session) {
	of := func(q *QP) bool { return q.session == s }
	f.asks.Remove(of)
	s.tenant.backlog.Remove(of)
	s.qps.walk(func(_ uint32, q *QP) {
		q.errands.dismiss()
		q.errands = nil
	})
}

// remove takes s out of the list, if s is there.
func (l *sessionList) remove(s *Session) {
	rest := *l
	*l = sessionList{}
	for rest.first != nil {
		if o := rest.pop(); o != s {
			l.push(o)
		}
	}
}

// pass gives the marks of a session's queue pairs and of its user to another loop.
func (m *asides) pass(s *Session, to *asides, now ib.Time) {
	s.qps.walk(func(_ uint32, q *QP) {
		if a := m.qps[q]; a != nil {
			delete(m.qps, q)
			to.mark(q, *a)
		}
	})
	m.passUser(s.User, to, now)
}

// passUser gives a user's mark to another loop.
func (m *asides) passUser(user int, to *asides, now ib.Time) {
	a := m.users[user]
	if a == nil || a.until <= now {
		return
	}
	u := to.users[user]
	if u == nil {
		u = to.newUser(user, now)
	}
	if a.until > u.until {
		*u = *a
	}
}

// PassMark gives a user's mark to another loop, if there is one: the other reaches that user's memory aside, too. Both
// loops stand still.
func (l *Loop) PassMark(user int, to *Loop, now ib.Time) {
	l.foreign.asides.passUser(user, &to.foreign.asides, now)
	if t := to.foreign.tenants[user]; t != nil {
		t.each(func(q *QP) { q.review(now) })
	}
}
