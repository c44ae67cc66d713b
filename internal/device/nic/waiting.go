package nic

import (
	"slices"
	"sync/atomic"

	"vrdma.dev/vrdma/internal/client/protocol"
)

// A waiter is a thread of a client that polls an empty completion queue and sleeps for a moment,
// because the loop needs its processor (shim/poll.c says when). It announces that in a word of its
// doorbell page. The loop wakes it after it has written a completion to any of its queues.
//
//	word = round << 2 | state
//
//	             announces                  sleeps on the word
//	0 nobody ────────────────▶ 1 announced ────────────────────▶ 3 asleep
//	    ▲                          │                               │
//	    └── the loop: next round ──┴──────── and wakes a waiter ───┘
//
// No wake-up is lost. A waiter announces itself, polls all of its queues once more, and
// sleeps only if the word is still that of its announcement. The loop looks at the word after
// it has written a completion. Either it finds the announcement; then the waiter is woken, or
// finds another word and does not sleep. Or it looked before the announcement; then the
// completion was there before, too, and the waiter's poll finds it. The round tells an
// announcement from a later one of another thread. A client that writes wrong values is woken in
// vain or not at all, and sleeps for a bounded time only.
//
// Between the announcement and the poll, and between the completion and the look, is a full fence, as in arm.go.
//
// waitRound is what a round adds to the word.
const waitRound = 4

// Pages that a client can sleep on implement Waker. Clients of other pages do not sleep, because
// protocol.DoorbellCPU, the loop's processor, stays 0 there.
type Waker interface {
	// Wake wakes one thread that sleeps on the word at offset; that one wakes the others.
	// It is called on the loop and never waits.
	Wake(offset uint64)
}

// waiting is a session's state of its waiters.
type waiting struct {
	word   *atomic.Uint32 // nil: the client cannot be woken
	waker  Waker
	round  uint32 // the last that was stored, in steps of waitRound
	queued bool   // the session is in waiters.queue
}

func (w *waiting) open(a *Arena) {
	if a == nil {
		return
	}
	if k, ok := a.pages.(Waker); ok {
		w.waker, w.word = k, shared32(a.mem, protocol.DoorbellWaiting)
	}
}

// Wakes reports whether waiters of the client can be woken.
func (s *Session) Wakes() bool { return s.waiting.word != nil }

// completed is called after each completion: a waiter, if there is one, is woken with the next
// WakeWaiter.
func (w *waiting) completed(s *Session) {
	if w.word != nil && w.word.Load()&protocol.WaitAnnounced != 0 && !w.queued && s.loop != nil {
		w.queued = true
		s.loop.waiters.queue = append(s.loop.waiters.queue, s)
	}
}

// waiters are those of a loop.
type waiters struct {
	queue []*Session // have waiters that are to be woken
}

func (w *waiters) forget(s *Session) {
	if s.waiting.queued {
		s.waiting.queued = false
		w.queue = slices.DeleteFunc(w.queue, func(o *Session) bool { return o == s })
	}
}

// Waiters reports whether there are waiters to wake.
func (l *Loop) Waiters() bool { return len(l.waiters.queue) > 0 }

// WakeWaiter wakes a waiter and returns its session. It takes the session off the list before it
// accesses the word, because that may fault and close the session.
func (l *Loop) WakeWaiter() *Session {
	last := len(l.waiters.queue) - 1
	s := l.waiters.queue[last]
	l.waiters.queue[last] = nil
	l.waiters.queue = l.waiters.queue[:last]
	w := &s.waiting
	w.queued = false
	w.round += waitRound
	if w.word.Swap(w.round)&protocol.WaitAsleep != 0 {
		w.waker.Wake(protocol.DoorbellWaiting)
	}
	return s
}
