package engine

import (
	"vrdma.dev/vrdma/internal/ib"
)

// A heap orders queue pairs, or the sessions that own them, by their deadlines. Each stays at the
// earliest time that it asked for. A deadline that moves later, as with every acknowledgement, costs
// nothing until the old one is due. It is filed again then.
type heap[P any] []entry[P]

// A timer is the position of an element in a heap.
type timer struct {
	due ib.Time
	at  int // 1 + index in the heap; 0: in none
}

type entry[P any] struct {
	t  *timer
	of P
}

// file inserts or moves p, whose timer is t.
func (h *heap[P]) file(t *timer, p P, due ib.Time) {
	later := t.at != 0 && due > t.due
	t.due = due
	if t.at == 0 {
		*h = append(*h, entry[P]{t, p})
		t.at = len(*h)
	}
	if later {
		h.down(t.at - 1)
	} else {
		h.up(t.at - 1)
	}
}

// due is the first deadline; zero is never.
func (h heap[P]) due() ib.Time {
	if len(h) == 0 {
		return 0
	}
	return h[0].t.due
}

// pop takes the first element.
func (h *heap[P]) pop() P {
	p := (*h)[0].of
	h.remove((*h)[0].t)
	return p
}

// remove takes the element whose timer is t.
func (h *heap[P]) remove(t *timer) {
	i, last := t.at-1, len(*h)-1
	h.swap(i, last)
	(*h)[last] = entry[P]{}
	*h = (*h)[:last]
	*t = timer{}
	if i < last {
		h.down(i)
		h.up(i)
	}
}

func (h heap[P]) less(i, j int) bool { return h[i].t.due < h[j].t.due }

func (h heap[P]) swap(i, j int) {
	h[i], h[j] = h[j], h[i]
	h[i].t.at, h[j].t.at = i+1, j+1
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
