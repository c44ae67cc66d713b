package engine

import (
	"vrdma/internal/nic"
	"vrdma/internal/transport"
)

// timers is a heap of queue pairs by when to look at them. A queue pair stays with
// the earliest time it asked for: a deadline that moved later (every
// acknowledgement moves it) costs nothing until the old one comes due, and is then
// filed again.
type timers []*nic.QP

// longestNap is how long nobody is looked at who waits: a queue pair that is destroyed
// meanwhile is kept until then.
const longestNap = transport.Time(1_000_000_000)

// arm files q if it wants to be looked at before what is filed.
func (e *Engine) arm(q *nic.QP) {
	d := q.Transport().Deadline()
	if d > e.now+longestNap {
		d = e.now + longestNap
	}
	s := &q.Sched
	if d == 0 || s.Timer != 0 && s.Due <= d {
		return
	}
	s.Due = d
	if s.Timer == 0 {
		e.timers = append(e.timers, q)
		s.Timer = len(e.timers)
	}
	e.timers.up(s.Timer - 1)
}

// expire looks at the queue pairs whose time has come.
func (e *Engine) expire() bool {
	any := false
	for len(e.timers) > 0 && e.timers[0].Sched.Due <= e.now {
		q := e.timers.pop()
		if q.Gone() {
			e.landed(q)
			continue
		}
		if d := q.Transport().Deadline(); d != 0 && d <= e.now {
			any = true
			e.current = q
			if excused(q) {
				q.Transport().Excuse(e.now)
			}
			q.Transport().Expire(e.now, q)
			e.deliver()
			e.settle(q)
			e.schedule(q)
		}
		e.arm(q)
	}
	return any
}

func (t timers) less(i, j int) bool { return t[i].Sched.Due < t[j].Sched.Due }

func (t timers) swap(i, j int) {
	t[i], t[j] = t[j], t[i]
	t[i].Sched.Timer, t[j].Sched.Timer = i+1, j+1
}

func (t timers) up(i int) {
	for i > 0 {
		p := (i - 1) / 2
		if !t.less(i, p) {
			return
		}
		t.swap(i, p)
		i = p
	}
}

func (t timers) down(i int) {
	for {
		c := 2*i + 1
		if c >= len(t) {
			return
		}
		if c+1 < len(t) && t.less(c+1, c) {
			c++
		}
		if !t.less(c, i) {
			return
		}
		t.swap(c, i)
		i = c
	}
}

func (t *timers) pop() *nic.QP {
	h := *t
	q := h[0]
	last := len(h) - 1
	h.swap(0, last)
	h[last] = nil
	*t = h[:last]
	t.down(0)
	q.Sched.Timer, q.Sched.Due = 0, 0
	return q
}

// due is when the first timer wants attention; zero is never.
func (t timers) due() transport.Time {
	if len(t) == 0 {
		return 0
	}
	return t[0].Sched.Due
}
