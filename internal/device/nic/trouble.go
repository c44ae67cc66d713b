package nic

import (
	"vrdma.dev/vrdma/internal/ib"
)

// The loop polls for two events, because they ring no doorbell. A receive is posted to a queue pair in
// the error state, and has to be flushed. Or a client reads from an event channel that was full.
//
// A round visits the sessions that have such objects in turns: a few objects a turn, and at most
// roundVisits of one session. The loop calls VisitTroubled every few milliseconds, and in every pass
// while a round lasts. Its limit bounds the time of a call. A session with very many queue pairs in
// the error state waits longer for its own, but delays no other session.
//
//	troubled ── a round begins ──▶ visiting ── all, or enough, were visited ──▶ troubled
//	    ▲                           │    ▲ └─ nothing left ──▶ in neither
//	    └── watch, stall            └────┘ the next few, when its turn comes again

const (
	// visitBatch is how many objects of a session are visited before another's.
	visitBatch = 8
	// roundVisits is how many objects of a session one round visits.
	roundVisits = 1024
	// pumpCost is what a visit of an event channel counts for: it makes system calls.
	pumpCost = 8
)

// trouble is what of a session has to be visited.
type trouble struct {
	listed  bool // the session is in one of the loop's lists
	next    *Session
	visits  int // so far in this round
	errored struct {
		first, last *QP
		n           int
	}
	stalled struct {
		first, last *eventQueue
		n           int
	}
}

func (t *trouble) count() int { return t.errored.n + t.stalled.n }

// A sessionList is a queue of sessions.
type sessionList struct{ first, last *Session }

func (l *sessionList) push(s *Session) {
	if l.first == nil {
		l.first = s
	} else {
		l.last.trouble.next = s
	}
	l.last = s
}

func (l *sessionList) pop() *Session {
	s := l.first
	l.first, s.trouble.next = s.trouble.next, nil
	return s
}

// list has s visited from the next round on.
func (t *trouble) list(s *Session) {
	if !t.listed && s.loop != nil {
		t.listed = true
		s.loop.troubled.push(s)
	}
}

// watch has the receives of q, which is in the error state, looked after.
func (t *trouble) watch(q *QP) {
	if q.watched {
		return
	}
	q.watched = true
	e := &t.errored
	if e.first == nil {
		e.first = q
	} else {
		e.last.nextWatch = q
	}
	e.last = q
	e.n++
	t.list(q.session)
}

// unwatch takes the first of those that are watched.
func (t *trouble) unwatch() *QP {
	e := &t.errored
	q := e.first
	e.first, q.nextWatch, q.watched = q.nextWatch, nil, false
	e.n--
	return q
}

// stall has q tried again, whose channel is full.
func (t *trouble) stall(q *eventQueue) {
	if q.stalled {
		return
	}
	q.stalled = true
	e := &t.stalled
	if e.first == nil {
		e.first = q
	} else {
		e.last.next = q
	}
	e.last = q
	e.n++
	t.list(q.session)
}

// unstall takes the first of those that are stalled.
func (t *trouble) unstall() *eventQueue {
	e := &t.stalled
	q := e.first
	e.first, q.next, q.stalled = q.next, nil, false
	e.n--
	return q
}

// Troubled reports whether there is anything for VisitTroubled to do.
func (l *Loop) Troubled() bool { return l.troubled.first != nil || l.visiting.first != nil }

// VisitTroubled completes receives that were posted to queue pairs in the error state and
// delivers events that found their channel full. It visits about limit objects and reports
// whether the round goes on; if not, the next call begins another.
func (l *Loop) VisitTroubled(limit int) (more bool) {
	if l.visiting.first == nil {
		l.visiting, l.troubled = l.troubled, sessionList{}
	}
	for limit > 0 && l.visiting.first != nil {
		s := l.visiting.pop()
		t := &s.trouble
		if s.nic.suspended {
			limit--
			l.troubled.push(s)
			continue
		}
		if !s.closed {
			limit -= max(t.visitSome(visitBatch), 1)
		}
		switch {
		case s.closed || t.count() == 0:
			t.visits, t.listed = 0, false
		case t.visits >= min(t.count(), roundVisits):
			t.visits = 0
			l.troubled.push(s)
		default:
			l.visiting.push(s)
		}
	}
	return l.visiting.first != nil
}

// SetSuspended sets whether the NIC is suspended: nothing of it changes then, because it is being moved to another
// host. It runs on the loop.
func (n *NIC) SetSuspended(so bool) { n.suspended = so }

// visitSome visits a full event channel, if there is one, and some queue pairs in the error
// state. It returns what that cost.
func (t *trouble) visitSome(most int) (cost int) {
	if t.stalled.n > 0 {
		most--
		cost += pumpCost
		q := t.unstall()
		if full := q.pump(); full || len(q.waiting) == 0 {
			t.visits++
		} // else the client reads: it is visited again in this round
		if len(q.waiting) > 0 {
			t.stall(q)
		}
	}
	for range min(most, t.errored.n) {
		t.visits++
		cost++
		q := t.unwatch()
		if q.gone || q.tr.State() != ib.StateError {
			continue
		}
		q.Flush()
		t.watch(q)
		if q.tr.RunPending() {
			q.owner.Wake() // there is more than is flushed at once
		}
	}
	return cost
}
