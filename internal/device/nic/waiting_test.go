package nic

import (
	"fmt"
	"testing"

	"vrdma.dev/vrdma/internal/client/protocol"
)

// plainPages are pages that nobody can sleep on.
type plainPages struct{ mem []byte }

func (p plainPages) Bytes() []byte        { return p.mem }
func (p plainPages) Punch(uint64, uint64) {}
func (p plainPages) Close()               {}

// countingPages are pages that count the wake-ups.
type countingPages struct {
	plainPages
	woken *int
}

func (p countingPages) Wake(offset uint64) {
	if offset != protocol.DoorbellWaiting {
		panic(fmt.Sprintf("woken at %d", offset))
	}
	*p.woken++
}

// waitingSession is a session with a completion queue.
func waitingSession(t *testing.T, r *rig, p Pages) (*Session, *CQ) {
	t.Helper()
	s, err := r.nic.Open(SessionOptions{Arena: NewArenaIn(p)})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Close)
	s.SetOwner(r.loop)
	info, err := s.CreateCQ(CQParams{CQE: 8, Channel: -1})
	if err != nil {
		t.Fatal(err)
	}
	c, _ := s.cqs.get(info.Handle)
	return s, c
}

func wakeAll(r *rig) {
	for r.loop.loop.Waiters() {
		r.loop.loop.WakeWaiter()
	}
}

func TestWaitersAreWoken(t *testing.T) {
	r := newRig(t, DefaultLimits)
	woken := 0
	mem := make([]byte, protocol.SharedSize+1<<16)
	s, c := waitingSession(t, r, countingPages{plainPages{mem}, &woken})
	if !s.Wakes() {
		t.Fatal("the client may not sleep")
	}
	word := shared32(mem, protocol.DoorbellWaiting)
	for i, step := range []struct {
		state uint32 // of the word, when the completion comes
		owed  bool
		wakes int
	}{
		{0, false, 0},
		{protocol.WaitAnnounced, true, 0},
		{protocol.WaitAnnounced | protocol.WaitAsleep, true, 1},
		{protocol.WaitAsleep, false, 0}, // a lie
		{0xffffffff, true, 1},           // another
	} {
		word.Store(word.Load()&^3 | step.state)
		before := word.Load()
		woken = 0
		c.push(&completion{})
		c.push(&completion{})
		c.seen = c.prod // taken
		if got := r.loop.loop.Waiters(); got != step.owed {
			t.Errorf("step %d: somebody is to be woken: %v, want %v", i, got, step.owed)
		}
		wakeAll(r)
		if woken != step.wakes || r.loop.loop.Waiters() {
			t.Errorf("step %d: woke %d, want %d; more to wake: %v", i, woken, step.wakes, r.loop.loop.Waiters())
		}
		if now := word.Load(); step.owed && (now == before || now&3 != 0) {
			t.Errorf("step %d: the word went from %#x to %#x, want the next round", i, before, now)
		}
	}
	// A session that ends is not woken afterwards.
	word.Store(word.Load() | protocol.WaitAnnounced | protocol.WaitAsleep)
	c.push(&completion{})
	s.Close()
	if woken = 0; r.loop.loop.Waiters() {
		t.Error("a session that is gone is to be woken")
	}
	wakeAll(r)
	if woken != 0 {
		t.Error("a session that is gone was woken")
	}
}

func TestPagesWithoutSleep(t *testing.T) {
	r := newRig(t, DefaultLimits)
	mem := make([]byte, protocol.SharedSize+1<<16)
	s, c := waitingSession(t, r, plainPages{mem})
	shared32(mem, protocol.DoorbellWaiting).Store(3)
	c.push(&completion{})
	if s.Wakes() || r.loop.loop.Waiters() {
		t.Error("a client that cannot be woken is to be woken")
	}
}

// TestNoWakeUpIsLost walks through every interleaving of two threads that wait, each for
// two queues, and a loop that completes something in each queue.
func TestNoWakeUpIsLost(t *testing.T) {
	const threads, queues = 2, 2
	type thread struct {
		step uint8 // 0 announces, 1.. polls, then swaps, then compares, then 9 asleep, 10 has what it waited for
		word uint32
	}
	type state struct {
		word uint32
		done [threads * queues]bool // completions that are written and not taken
		loop uint8                  // which completion, and which part of it
		owed bool
		th   [threads]thread
	}
	const asleep, satisfied = 9, 10
	seen := map[state]bool{}
	var walk func(s state)
	wakeAll := func(s *state) {
		for i := range s.th {
			if s.th[i].step == asleep {
				s.th[i].step = 0
			}
		}
	}
	walk = func(s state) {
		if seen[s] {
			return
		}
		seen[s] = true
		moved := false
		// The loop: write a completion, look at the word; at last, or in between, wake.
		if s.loop < threads*queues*2 {
			n := s
			if n.loop%2 == 0 {
				n.done[n.loop/2] = true
			} else if n.word&protocol.WaitAnnounced != 0 {
				n.owed = true
			}
			n.loop++
			moved = true
			walk(n)
		}
		if s.owed {
			n := s
			n.owed = false
			was := n.word
			n.word = (n.word>>2 + 1) << 2
			if was&protocol.WaitAsleep != 0 {
				wakeAll(&n)
			}
			moved = true
			walk(n)
		}
		for i := range s.th {
			n := s
			th := &n.th[i]
			switch {
			case th.step == 0:
				n.word |= protocol.WaitAnnounced
				th.word = n.word &^ protocol.WaitAsleep
				th.word |= s.word & protocol.WaitAsleep
				th.step = 1
			case th.step <= queues:
				if q := i*queues + int(th.step) - 1; n.done[q] {
					n.done[q] = false
					th.step = satisfied
				} else {
					th.step++
				}
			case th.step == queues+1: // compare and exchange
				if sleeps := th.word | protocol.WaitAsleep; n.word == th.word || n.word == sleeps {
					n.word, th.word = sleeps, sleeps
					th.step++
				} else {
					th.step = 0
				}
			case th.step == queues+2: // futex
				if n.word == th.word {
					th.step = asleep
				} else {
					th.step = 0
				}
			default:
				continue
			}
			moved = true
			walk(n)
		}
		if moved {
			return
		}
		for i, th := range s.th {
			if th.step == asleep && (s.done[i*queues] || s.done[i*queues+1]) {
				t.Fatalf("thread %d sleeps and has a completion: %+v", i, s)
			}
		}
	}
	walk(state{})
	t.Logf("%d states", len(seen))
	if len(seen) < 1000 {
		t.Errorf("only %d states", len(seen))
	}
}
