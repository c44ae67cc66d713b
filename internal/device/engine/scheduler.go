package engine

import (
	"vrdma.dev/vrdma/internal/device/nic"
	"vrdma.dev/vrdma/internal/device/schedule"
	"vrdma.dev/vrdma/internal/ib"
)

// A scheduler decides which queue pair has the next turn. The loop tells it who wants one
// (enqueue), by when (arm) and what a turn cost (charge), and asks for the next; it knows
// nothing of the order.
//
//	                  ┌─ share of user 1000 ─┬─ flow of session A ── QP ── QP ── …   timers: QP …
//	                  │                      └─ flow of session B ── QP
//	┌─ band of NIC ───┤
//	│           (ring)└─ share of user 1001 ─── flow of session C ── QP ── QP
//	└─ band of NIC ── …
//
// Which NIC is next is decided by package schedule: there are tenants, shares and caps. Within
// a NIC turns go round the users, within a user round their sessions, and within a session
// round its queue pairs. So a user with a thousand sessions, or a thousand queue pairs, has as
// many turns as one with a single queue pair, and between two turns of a user every other
// one has at most one. Whose turn took longer than quantum, a user or a session, sits out
// until the others have had as much.
//
// The timers of a session are its own, too: when one is due the session wants a turn, and
// what is due is looked at in that turn, a few at a time. The same holds for the sessions of
// a user. So expired timers cost others no more than anything else the user does.
//
// Nothing here allocates, except that the heaps of timers grow to the most they ever held.
type scheduler struct {
	nics    schedule.Scheduler
	alone   *band        // the only NIC, if it has no caps: nobody decides between NICs then
	clock   *ib.Time     // of the loop
	ready   int          // how many sessions want a turn
	alarms  heap[*share] // the users that want none and have timers, by the first that is due
	tenants map[string]*schedule.Tenant

	waited waits
}

// A band is what the scheduler knows of a NIC.
type band struct {
	nic         schedule.NIC
	adapter     *adapter
	first, last *share // users that want a turn
	shares      map[int]*share
	settled     *nic.Waits // of its NIC, and counted in scheduler.waited; nil: none is
}

// A share is what the scheduler knows of a user of a NIC.
type share struct {
	of          *band
	uid         int
	next        *share
	first, last *flow       // sessions that want a turn
	alarms      heap[*flow] // the others that have timers, by the first that is due
	alarm       timer       // among scheduler.alarms
	credit      ib.Time     // negative: they had more than their share
	flows       int         // sessions there are
	queued      bool        // among the ready
	due         bool        // queued because of its timers
}

// A flow is what the scheduler knows of a session.
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

	starved  queue[*task] // see starved.go
	starving bool         // among starved.flows
}

const (
	// quantum is how long a turn may take that does not cost the next one.
	quantum = ib.Time(500)
	// mostDebt bounds how long a session sits out, whatever its turn took: the loop may
	// have been without a processor meanwhile, for which the session cannot be blamed.
	mostDebt = 40 * quantum
	// slowTurn is how long a turn may take that used all of its allowance before the
	// next is allowed half of it, slowest times at most. Memory that is in a processor's
	// cache is copied ten times as fast as memory that is not.
	slowTurn = ib.Time(8_000)
	slowest  = 3
	// dueAtOnce is how many timers of a session, or sessions of a user, are looked at in
	// one turn of it.
	dueAtOnce = 2
	// alarmsPerPass is how many users are woken by their timers in one pass.
	alarmsPerPass = 16
	// mostLooks is how many users, or sessions of one, are passed over at once because
	// they had more than their share.
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

// waiting reports whether somebody wants a turn, and may have one.
func (s *scheduler) waiting() bool {
	if b := s.alone; b != nil {
		return b.first != nil
	}
	return s.nics.Waiting()
}

// decide finds out, after NICs or their caps have changed, whether there is one only and no
// decision between them.
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

// enqueue says that t wants a turn. It is queued once.
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

// next takes the queue pair whose turn it is. It returns nil where a session was looked at
// whose timers turned out not to be due; somebody may be waiting still.
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
		b.adapter.nic.Waited(now - t.since)
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
			u.credit = 0 // what nobody else wanted is free
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

// allowance is how many bytes t may move in a turn while other sessions ring, too: as many
// as took its session slowTurn at most lately.
func (s *scheduler) allowance(t *task) int { return turnBytes >> t.c.flow.slow }

// charge says what the turn of t has taken, and whether it used all of its allowance. What its
// NIC had is in the ledger.
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

// bill says what was done for f outside of its turns.
func (s *scheduler) bill(f *flow, cost ib.Time) {
	f.credit = max(f.credit-cost, -mostDebt)
	f.of.credit = max(f.of.credit-cost, -mostDebt)
}

// armDeadline has t given a turn when the deadline of its state machine comes.
func (s *scheduler) armDeadline(t *task) {
	if d := t.q.Transport().Deadline(); d != 0 && (t.timer.at == 0 || d < t.timer.due) {
		s.arm(t, d)
	}
}

// arm has t given a turn at d, or before if it asked for that.
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

// setAlarm has f woken at d.
func (s *scheduler) setAlarm(f *flow, d ib.Time) {
	u := f.of
	u.alarms.file(&f.alarm, f, d)
	if !u.due && (u.alarm.at == 0 || d < u.alarm.due) {
		s.alarms.file(&u.alarm, u, d)
	}
}

// wakeDue makes the users ready whose timers are due, and lets NICs go on that were over a cap.
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

// wakeFlows makes the first sessions of u ready whose timers are due.
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

// takeDue queues the first queue pairs of f whose time has come.
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

// due is when the first timer wants attention; zero is never.
func (s *scheduler) due() ib.Time {
	if s.alone != nil {
		return s.alarms.due() // it has no caps to wait for
	}
	return sooner(s.alarms.due(), s.nics.Due())
}

// forget drops the timer of t, whose queue pair is destroyed. Its place in a queue it keeps
// until its turn comes.
func (s *scheduler) forget(t *task) {
	if f := &t.c.flow; t.timer.at != 0 && !f.gone {
		f.timers.remove(&t.timer)
	}
}

// leave drops f, whose session is closed. If it is queued it is skipped when its turn comes.
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
