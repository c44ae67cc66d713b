package engine

import (
	"vrdma/internal/nic"
	"vrdma/internal/transport"
)

// A heap orders queue pairs, or the sessions that own them, by when to look at them. Each
// stays with the earliest time it asked for: a deadline that moved later (every
// acknowledgement moves it) costs nothing until the old one comes due, and is then filed
// again.
type heap[P any] []entry[P]

type entry[P any] struct {
	t  *nic.Timer
	of P
}

// file has p, whose place is t, looked at when due.
func (h *heap[P]) file(t *nic.Timer, p P, due transport.Time) {
	later := t.At != 0 && due > t.Due
	t.Due = due
	if t.At == 0 {
		*h = append(*h, entry[P]{t, p})
		t.At = len(*h)
	}
	if later {
		h.down(t.At - 1)
	} else {
		h.up(t.At - 1)
	}
}

// due is when the first wants attention; zero is never.
func (h heap[P]) due() transport.Time {
	if len(h) == 0 {
		return 0
	}
	return h[0].t.Due
}

// pop takes the first.
func (h *heap[P]) pop() P {
	p := (*h)[0].of
	h.remove((*h)[0].t)
	return p
}

// remove takes the one whose place is t.
func (h *heap[P]) remove(t *nic.Timer) {
	i, last := t.At-1, len(*h)-1
	h.swap(i, last)
	(*h)[last] = entry[P]{}
	*h = (*h)[:last]
	*t = nic.Timer{}
	if i < last {
		h.down(i)
		h.up(i)
	}
}

func (h heap[P]) less(i, j int) bool { return h[i].t.Due < h[j].t.Due }

func (h heap[P]) swap(i, j int) {
	h[i], h[j] = h[j], h[i]
	h[i].t.At, h[j].t.At = i+1, j+1
}

func (h heap[P]) up(i int) {
	for i > 0 {
		p := (i - 1) / 2
		if !h.less(i, p) {
			return
		}
		h.swap(i, p)
		i = p
	}
}

func (h heap[P]) down(i int) {
	for {
		c := 2*i + 1
		if c >= len(h) {
			return
		}
		if c+1 < len(h) && h.less(c+1, c) {
			c++
		}
		if !h.less(c, i) {
			return
		}
		h.swap(c, i)
		i = c
	}
}

// arm has q looked at when its deadline comes.
func (e *Engine) arm(q *nic.QP) {
	d := q.Transport().Deadline()
	if t := &q.Sched.Timer; d == 0 || t.At != 0 && t.Due <= d {
		return
	}
	if f := flowOf(q); f != nil {
		e.sched.arm(f, q, d)
	}
}
