package nic

import (
	"vrdma.dev/vrdma/internal/device/transport"
	"vrdma.dev/vrdma/internal/ib"
)

// Mapped memory can block the loop, too: the kernel allocates a missing page when the loop accesses
// it, and the owner of the memory controls how long that takes. For example, while the owner punches
// a hole in the file, an access to a page in the hole blocks until all of it is punched. userfaultfd
// does not help: the kernel waits for the hole before it calls userfaultfd.
//
// So package engine watches the loop. If a copy for a queue pair has blocked the loop, the queue
// pair is marked: from then on its memory is accessed aside, as if every byte was foreign.
//
//	a copy stops the loop ──▶ both sides belong to one user: all queue pairs of that user
//	                      └─▶ to two users: the two queue pairs, because either page may be the cause
//
// A mark ends after a while. It lasts twice as long when the same user needs it again.
//
// The queue pair may be in the midst of its work when it is marked, or when the mark ends. What it
// sends, or answers a READ with, is read the other way from the next burst on. A job that has read
// something else is begun again (Stage), or given up after a while if none is needed. What it
// receives may be with a job that writes a part of it already. Then the change waits until that
// burst is taken, because no byte may be written twice: the program may have read it and written
// there itself.

const (
	// asideLeast is how long a mark lasts first, and asideMost how long at most.
	asideLeast = ib.Time(600e9)
	asideMost  = ib.Time(3600e9)
	// asideUsers is how many users are remembered, whether they have sessions or not.
	asideUsers = 4096
	// asideStrikes is how often memory that cannot be reached aside may stop the loop before its
	// queue pair fails. A virtual machine whose memory is swapped out does it as well.
	asideStrikes = 3
)

// aside is a mark.
type aside struct {
	until ib.Time
	lasts ib.Time // how long it lasts this time
}

// extend begins or renews the mark.
func (a *aside) extend(now ib.Time) {
	a.lasts = min(max(2*a.lasts, asideLeast), asideMost)
	a.until = now + a.lasts
}

// asides are the marks of a loop.
type asides struct {
	users map[int]*aside
	qps   map[*QP]*aside
}

// Blame is what follows from a copy that has stopped the loop.
type Blame struct {
	User  bool    // all of the user's queue pairs are reached aside, else those of the copy
	Lasts ib.Time // how long
	// Fail are queue pairs that have to fail, because their memory cannot be reached aside.
	Fail []*QP
}

// Blame marks the queue pairs of a copy that stopped the loop. b is nil if only a's memory was
// touched. It runs on the loop, while neither receives.
func (l *Loop) Blame(a, b *QP, now ib.Time) Blame {
	m := &l.foreign.asides
	out := Blame{User: b == nil || a.session.tenant == b.session.tenant}
	sides := [...]*QP{a, b}
	for _, q := range sides {
		// Of two users either may be the cause: only memory of one user counts.
		if out.User && q != nil && !q.session.Space.Reachable() {
			if q.session.stalls++; q.session.stalls >= asideStrikes {
				out.Fail = append(out.Fail, q)
			}
		}
	}
	if out.User {
		u := m.users[a.session.User]
		if u == nil {
			u = m.newUser(a.session.User, now)
		}
		u.extend(now)
		out.Lasts = u.lasts
		a.session.tenant.each(func(q *QP) { q.review(now) })
		return out
	}
	for _, q := range sides {
		s := m.qps[q]
		if s == nil {
			s = m.mark(q, aside{})
		}
		s.extend(now)
		out.Lasts = s.lasts
		q.review(now)
	}
	return out
}

// mark makes the record of a queue pair.
func (m *asides) mark(q *QP, a aside) *aside {
	if m.qps == nil {
		m.qps = make(map[*QP]*aside)
	}
	m.qps[q] = &a
	return &a
}

// newUser makes the record of a user. If there are too many, those go whose time has passed, and
// then any.
func (m *asides) newUser(uid int, now ib.Time) *aside {
	if m.users == nil {
		m.users = make(map[int]*aside)
	}
	for k, u := range m.users {
		if len(m.users) < asideUsers {
			break
		}
		if u.until <= now {
			delete(m.users, k)
		}
	}
	for k := range m.users {
		if len(m.users) < asideUsers {
			break
		}
		delete(m.users, k)
	}
	u := &aside{}
	m.users[uid] = u
	return u
}

// of reports whether the queue pair is to be reached aside.
func (m *asides) of(q *QP, now ib.Time) bool {
	if u := m.users[q.session.User]; u != nil && u.until > now {
		return true
	}
	s := m.qps[q]
	return s != nil && s.until > now
}

// AsideDue is when ReviewAside has something to do; 0 is never.
func (l *Loop) AsideDue(now ib.Time) (due ib.Time) {
	note := func(a *aside) {
		if a.until > now && (due == 0 || a.until < due) {
			due = a.until
		}
	}
	for _, u := range l.foreign.asides.users {
		note(u)
	}
	for _, q := range l.foreign.asides.qps {
		note(q)
	}
	return due
}

// ReviewAside ends the marks whose time has passed. It runs on the loop, in a command.
func (l *Loop) ReviewAside(now ib.Time) {
	for uid, u := range l.foreign.asides.users {
		if t := l.foreign.tenants[uid]; t != nil && u.until <= now {
			t.each(func(q *QP) { q.review(now) })
		}
	}
	for q := range l.foreign.asides.qps {
		q.review(now)
	}
}

// each visits the queue pairs of the user.
func (t *tenant) each(visit func(*QP)) {
	for s := range t.members {
		s.qps.walk(func(_ uint32, q *QP) { visit(q) })
	}
}

// review makes the queue pair's memory be reached aside, or by the loop again, if that is not so
// already.
func (q *QP) review(now ib.Time) {
	want := q.loop.foreign.asides.of(q, now) && q.session.Space.Reachable()
	q.asideOut = want
	if q.asideIn != want && q.errands.writes() {
		q.errands.review = true
		return
	}
	q.asideIn = want
}

// writes reports whether a job writes, or has written, a part of a burst that is not taken yet.
func (l *errands) writes() bool {
	if l == nil {
		return false
	}
	s := l.of[taskTake].state
	return s == errandRunning || s == errandDone
}

// Aside reports whether the queue pair's memory is reached aside.
func (q *QP) Aside() bool { return q.asideOut || q.asideIn }

// all reports whether all of a session's memory is reached aside.
func (m *asides) all(s *Session) bool {
	u := m.users[s.User]
	return u != nil && u.until > s.owner.Now() && s.Space.Reachable()
}

// Fail takes the queue pair to the error state, as a failed command of its own would. It runs on
// the loop, in a command.
func (q *QP) Fail() {
	if !q.gone && q.tr.State() != ib.StateReset {
		q.session.ModifyQP(q.handle, ib.MaskState, &QPAttr{State: uint8(ib.StateError)})
		(*qpNIC)(q).Event(transport.EventFatal)
	}
}
