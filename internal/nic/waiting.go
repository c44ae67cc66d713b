package nic

import (
	"slices"
	"sync/atomic"

	"vrdma/internal/protocol"
)

// A client that polls an empty completion queue may sleep for a moment, where the loop
// needs its processor (shim/poll.c says when). It says so in a word of its doorbell page, and
// is woken when a completion has been written to any of its queues.
//
//	word = round << 2 | state
//
//	            client announces          client sleeps on the word
//	0 nobody ────────────────────▶ 1 ────────────────────────────▶ 3
//	    ▲                          │                               │
//	    └── the loop: next round ──┴────── and wakes the sleepers ─┘
//
// No wake-up is lost. The client announces itself, polls all of its queues once more, and
// sleeps only if the word is still that of its announcement. Either the loop's look at
// the word, which follows the completion, finds the announcement; then the client is woken, or finds
// another word and does not sleep. Or the look came before the announcement; then so did the
// completion, and the client's poll finds it. The round makes the difference between an
// announcement and a later one of another thread. A client that lies is woken in vain or not at
// all, and sleeps for a bounded moment only.
const waitRound = 4

// A Waker is Pages that a client can sleep on. Pages that are none have clients that do not
// sleep: they are not told that they would be woken.
type Waker interface {
	// Wake wakes one thread that sleeps on the word at offset. It is called on the loop and
	// never waits. Who is woken wakes the others.
	Wake(offset uint64)
}

// waiting is what a session knows of clients that sleep.
type waiting struct {
	word  *atomic.Uint32 // nil: the client cannot be woken
	waker Waker
	round uint32
	owed  bool // among waiters.owed
}

func (w *waiting) open(a *Arena) {
	if a == nil {
		return
	}
	if k, ok := a.pages.(Waker); ok {
		w.waker, w.word = k, shared32(a.mem, protocol.DoorbellWaiting)
	}
}

// Wakes reports whether a client that sleeps can be woken.
func (s *Session) Wakes() bool { return s.waiting.word != nil }

// told follows a completion: if somebody waits for one, it is woken by the next WakeWaiter.
func (s *Session) told() {
	w := &s.waiting
	if w.word != nil && w.word.Load()&protocol.WaitAnnounced != 0 && !w.owed && s.loop != nil {
		w.owed = true
		s.loop.waiters.owed = append(s.loop.waiters.owed, s)
	}
}

// waiters are the sessions that are to be woken.
type waiters struct {
	owed []*Session
}

func (w *waiters) forget(s *Session) {
	if s.waiting.owed {
		s.waiting.owed = false
		w.owed = slices.DeleteFunc(w.owed, func(o *Session) bool { return o == s })
	}
}

// Waiters reports whether somebody is to be woken.
func (l *Loop) Waiters() bool { return len(l.waiters.owed) > 0 }

// WakeWaiter wakes one of the clients that slept until a completion, and returns whose it is.
// A client is off the list before its word is touched, which may fault and close its session.
func (l *Loop) WakeWaiter() *Session {
	last := len(l.waiters.owed) - 1
	s := l.waiters.owed[last]
	l.waiters.owed[last] = nil
	l.waiters.owed = l.waiters.owed[:last]
	w := &s.waiting
	w.owed = false
	w.round += waitRound
	if w.word.Swap(w.round)&protocol.WaitAsleep != 0 {
		w.waker.Wake(protocol.DoorbellWaiting)
	}
	return s
}
