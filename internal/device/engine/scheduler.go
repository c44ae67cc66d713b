package engine

import (
	"vrdma.dev/vrdma/internal/device/fifo"
	"vrdma.dev/vrdma/internal/device/nic"
	"vrdma.dev/vrdma/internal/device/schedule"
	"vrdma.dev/vrdma/internal/ib"
)

// A scheduler decides which queue pair has the next turn. The loop requests turns (enqueue), sets
// deadlines (arm), reports the cost of a turn (charge) and asks for the next queue pair. It does not
// know the order.
//
//	                  ┌─ share of user 1000 ─┬─ flow of session A ── QP ── QP ── …   timers: QP …
//	                  │                      └─ flow of session B ── QP
//	┌─ band of NIC ───┤
//	│           (ring)└─ share of user 1001 ─── flow of session C ── QP ── QP
//	└─ band of NIC ── …
//
// Package schedule decides which NIC is next, by tenants, shares and caps (caps.go). Within a NIC
// turns go round the users, within a user round the sessions, and within a session round the queue
// pairs. A user with a thousand sessions, or a thousand queue pairs, therefore has as many turns as a
// user with one queue pair. Between two turns of a user every other user has at most one. A user or
// session whose turn took longer than quantum is skipped until the others have had as much.
//
// Timers belong to sessions, too. When one is due its session wants a turn, and that turn handles a few
// due timers. The same holds for the sessions of a user. So expired timers cost others no more than any
// other work of the user.
//
// Nothing here allocates, except that heaps of timers grow to the largest size that they ever had.
type scheduler struct {
	nics    schedule.Scheduler
	alone   *band        // the only NIC, if it has no caps: package schedule is not asked then
	clock   *ib.Time     // the loop's time
	ready   int          // number of sessions that want a turn
	alarms  heap[*share] // the users that want none and have timers, by their first deadline
	tenants map[string]*schedule.Tenant
	ledgers *ledgers // nil: there is one loop
	loop    int

	waited waits
}

// A band is the scheduler's record of a NIC.
type band struct {
	nic         schedule.NIC
	adapter     *adapter
	first, last *share // users that want a turn
	shares      map[int]*share
	settled     *nic.Waits // the part of its NIC's waits that scheduler.waited includes; nil: none
}

// A share is the scheduler's record of a user of a NIC.
type share struct {
	of          *band
	uid         int
	next        *share
	first, last *flow       // sessions that want a turn
	alarms      heap[*flow] // sessions that want none and have timers, by their first deadline
	alarm       timer       // in scheduler.alarms
	credit      ib.Time     // negative: the user had more than its share
	flows       int         // number of sessions
	queued      bool        // it is in the queue of its band
	due         bool        // queued because of its timers
}

// A flow is the scheduler's record of a session.
type flow struct {
	of          *share
	next        *flow
	first, last *task // queue pairs that want a turn
	timers      heap[*task]
	alarm       timer   // among the share's alarms
	credit      ib.Time // negative: it had more than its share
	slow        uint8   // how often its allowance is halved
	queued      bool    // among the ready
	due         bool    // queued because of its timers
	gone        bool    // the session is closed

	starved  fifo.Queue[*task] // see starved.go
	starving bool              // among starved.flows
}

const (
	// quantum is the duration of a turn that costs no later turn.
	quantum = ib.Time(500)
	// mostDebt bounds how long a session is skipped, however long its turn took: the kernel may have
	// preempted the loop, which is not the session's fault.
	mostDebt = 40 * quantum
	// slowTurn is the duration of a turn with all of its allowance after which the next one gets half
	// of it, slowest times at most. Memory in a CPU's cache is copied ten times as fast as other
	// memory.
	slowTurn = ib.Time(8_000)
	slowest  = 3
	// dueAtOnce is how many due timers of a session, or sessions of a user, one turn handles.
	dueAtOnce = 2
	// alarmsPerPass is how many users become ready by their timers in one pass.
	alarmsPerPass = 16
	// mostLooks is how many users, or sessions of one, are skipped at once because they had more
	// than their share.
	mostLooks = 128
)

// join makes f a session of a user of a NIC.
func (s *scheduler) join(f *flow, b *band, uid int) {
	u := b.shares[uid]
	if u == nil {
		if u = (&share{of: b, uid: uid}); b.shares == nil {
			b.shares = make(map[int]*share)
		}
		b.shares[uid] = u
	}
	u.flows++
	f.of = u
}

// waiting reports whether a queue pair wants a turn, and may have one.
func (s *scheduler) waiting() bool {
	if b := s.alone; b != nil {
		return b.first != nil
	}
	return s.nics.Waiting()
}

// decide sets alone after NICs or their caps have changed.
func (s *scheduler) decide() {
	n := s.nics.Alone()
	if was := s.alone; was != nil {
		if s.alone = nil; was.first != nil {
			s.nics.Ready(&was.nic, *s.clock)
		}
	}
	if n != nil {
		s.nics.Idle(n, *s.clock)
		s.alone = n.Of.(*band)
	}
}

// enqueue requests a turn for t. It is queued once.
func (s *scheduler) enqueue(t *task) {
	f := &t.c.flow
	if t.queued || f.gone {
		return
	}
	t.queued, t.since = true, *s.clock
	if f.first == nil {
		f.first = t
	} else {
		f.last.next = t
	}
	f.last = t
	s.queue(f)
}

// queue puts f at the end of its user's ready sessions.
func (s *scheduler) queue(f *flow) {
	if f.queued {
		return
	}
	f.queued = true
	u := f.of
	if u.first == nil {
		u.first = f
	} else {
		u.last.next = f
	}
	u.last = f
	s.ready++
	s.queueShare(u)
}

// unqueue takes the first of a user's ready sessions.
func (s *scheduler) unqueue(u *share) *flow {
	f := u.first
	u.first, f.next, f.queued = f.next, nil, false
	s.ready--
	return f
}

// queueShare puts u at the end of the ready users of its NIC.
func (s *scheduler) queueShare(u *share) {
	if u.queued {
		return
	}
	u.queued = true
	b := u.of
	if b.first == nil {
		if b.first = u; s.alone == nil {
			s.nics.Ready(&b.nic, *s.clock)
		}
	} else {
		b.last.next = u
	}
	b.last = u
}

// unqueueShare takes the first of the ready users of a NIC.
func (b *band) unqueueShare() *share {
	u := b.first
	b.first, u.next, u.queued = u.next, nil, false
	return u
}

// next takes the queue pair whose turn it is. It returns nil after a session whose timers were not due
// after all; others may still be waiting.
func (s *scheduler) next(now ib.Time) *task {
	b := s.alone
	if b == nil {
		n := s.nics.Next(now)
		if n == nil {
			return nil
		}
		b = n.Of.(*band)
	}
	t := s.nextIn(b, now)
	if b.first == nil && s.alone == nil {
		s.nics.Idle(&b.nic, now)
	}
	if t != nil {
		b.adapter.part.Waited(now - t.since)
	}
	return t
}

// nextIn takes the queue pair of a NIC whose turn it is.
func (s *scheduler) nextIn(b *band, now ib.Time) *task {
	for looks := 0; b.first != nil; looks++ {
		u := b.unqueueShare()
		s.wakeFlows(u, now)
		if u.first == nil {
			continue
		}
		if u.credit < 0 {
			if b.first != nil && looks < mostLooks {
				u.credit += quantum
				s.queueShare(u)
				continue
			}
			u.credit = 0 // time that no other user wanted is free
		}
		t := s.nextOf(u, now)
		if u.first != nil || u.due {
			s.queueShare(u)
		}
		return t
	}
	return nil
}

// nextOf takes the queue pair of user u whose turn it is.
func (s *scheduler) nextOf(u *share, now ib.Time) *task {
	for looks := 0; u.first != nil; looks++ {
		f := s.unqueue(u)
		if f.gone {
			continue
		}
		if f.credit < 0 {
			if u.first != nil && looks < mostLooks {
				f.credit += quantum
				s.queue(f)
				continue
			}
			f.credit = 0
		}
		s.takeDue(f, now)
		t := f.first
		if t != nil {
			if f.first, t.next = t.next, nil; f.first == nil {
				f.last = nil
			}
			t.queued = false
		}
		if f.first != nil || f.due {
			s.queue(f)
		}
		return t
	}
	return nil
}

// allowance is how many bytes t may move in a turn while other sessions ring, too: as many as its
// session lately moved in slowTurn.
func (s *scheduler) allowance(t *task) int { return turnBytes >> t.c.flow.slow }

// charge reports the cost of a turn of t, and whether it used all of its allowance. The clock charges
// the NIC.
func (s *scheduler) charge(t *task, cost ib.Time, all bool) {
	f := &t.c.flow
	f.credit = max(min(f.credit+quantum-cost, 0), -mostDebt)
	f.of.credit = max(min(f.of.credit+quantum-cost, 0), -mostDebt)
	if all && cost > slowTurn {
		f.slow = min(f.slow+1, slowest)
	} else if all && cost < slowTurn/2 && f.slow > 0 {
		f.slow--
	}
}

// bill charges f for work outside of its turns.
func (s *scheduler) bill(f *flow, cost ib.Time) {
	f.credit = max(f.credit-cost, -mostDebt)
	f.of.credit = max(f.of.credit-cost, -mostDebt)
}

// armDeadline gives t a turn at the deadline of its state machine.
func (s *scheduler) armDeadline(t *task) {
	if d := t.q.Transport().Deadline(); d != 0 && (t.timer.at == 0 || d < t.timer.due) {
		s.arm(t, d)
	}
}

// arm gives t a turn at d, or before if that was requested already.
func (s *scheduler) arm(t *task, d ib.Time) {
	f := &t.c.flow
	if f.gone || t.timer.at != 0 && t.timer.due <= d {
		return
	}
	f.timers.file(&t.timer, t, d)
	if !f.due && (f.alarm.at == 0 || d < f.alarm.due) {
		s.setAlarm(f, d)
	}
}

// setAlarm makes f ready at d.
func (s *scheduler) setAlarm(f *flow, d ib.Time) {
	u := f.of
	u.alarms.file(&f.alarm, f, d)
	if !u.due && (u.alarm.at == 0 || d < u.alarm.due) {
		s.alarms.file(&u.alarm, u, d)
	}
}

// wakeDue makes users with due timers ready, and NICs that are under their caps again.
func (s *scheduler) wakeDue(now ib.Time) {
	s.nics.Wake(now)
	for range alarmsPerPass {
		if d := s.alarms.due(); d == 0 || d > now {
			return
		}
		u := s.alarms.pop()
		u.due = true
		s.queueShare(u)
	}
}

// wakeFlows makes the first sessions of u with due timers ready.
func (s *scheduler) wakeFlows(u *share, now ib.Time) {
	if !u.due {
		return
	}
	for range dueAtOnce {
		if d := u.alarms.due(); d == 0 || d > now {
			break
		}
		f := u.alarms.pop()
		f.due = true
		s.queue(f)
	}
	d := u.alarms.due()
	if u.due = d != 0 && d <= now; !u.due && d != 0 {
		s.alarms.file(&u.alarm, u, d)
	}
}

// takeDue queues the first queue pairs of f whose deadlines are due.
func (s *scheduler) takeDue(f *flow, now ib.Time) {
	if !f.due {
		return
	}
	for range dueAtOnce {
		if d := f.timers.due(); d == 0 || d > now {
			break
		}
		t := f.timers.pop()
		if d := t.q.Transport().Deadline(); d > now {
			f.timers.file(&t.timer, t, d)
		} else if d != 0 {
			s.enqueue(t)
		}
	}
	d := f.timers.due()
	if f.due = d != 0 && d <= now; !f.due && d != 0 {
		s.setAlarm(f, d)
	}
}

// due is the first deadline; zero is never.
func (s *scheduler) due() ib.Time {
	if s.alone != nil {
		return s.alarms.due() // a NIC without caps never waits for one
	}
	return sooner(s.alarms.due(), s.nics.Due())
}

// forget drops the timer of t, whose queue pair is destroyed. It stays in its queue until its turn.
func (s *scheduler) forget(t *task) {
	if f := &t.c.flow; t.timer.at != 0 && !f.gone {
		f.timers.remove(&t.timer)
	}
}

// leave drops f, whose session is closed. If it is queued, its turn is skipped.
func (s *scheduler) leave(f *flow) {
	u := f.of
	if f.alarm.at != 0 {
		u.alarms.remove(&f.alarm)
	}
	f.gone, f.first, f.last, f.timers = true, nil, nil, nil
	if u.flows--; u.flows > 0 {
		return
	}
	if u.alarm.at != 0 {
		s.alarms.remove(&u.alarm)
	}
	delete(u.of.shares, u.uid)
}
