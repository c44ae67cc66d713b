package engine

import (
	"sync"
	"testing"
	"time"

	"vrdma.dev/vrdma/internal/ib"
)

// The loop's state has one holder at a time, whichever thread it is: the race detector checks it.
func TestStandInsAlone(t *testing.T) {
	e := newEngine(t)
	var all sync.WaitGroup
	n := 0
	for range 8 {
		all.Go(func() {
			for i := range 300 {
				e.Do(func() { n++; e.first.chores.startTick(e.first.clock.now) })
				if i%50 == 0 {
					time.Sleep(time.Millisecond) // the loop falls asleep
				}
			}
		})
	}
	all.Wait()
	e.Do(func() {
		if n != 8*300 {
			t.Errorf("%d commands ran, want %d", n, 8*300)
		}
	})
}

// Work that was posted before a command runs before it, whether the loop sleeps, is about to, or has just been woken.
func TestPostedBeforeCommand(t *testing.T) {
	a, b := pair(t)
	for i := range 2000 {
		mark := byte(i%250 + 1)
		a.c.mem[0] = mark
		for start := time.Now(); time.Since(start) < time.Duration(i%300)*time.Microsecond; {
		}
		a.post(wr{op: opWrite, n: 1, remote: b.c.base, rkey: b.mr.RKey})
		var got byte
		a.c.e.Do(func() { got = b.c.mem[0] })
		if got != mark {
			t.Fatalf("command %d saw %d where %d was written before", i, got, mark)
		}
	}
}

// alarm is a Management that only waits.
type alarm struct {
	e    *Engine
	due  ib.Time
	rang chan struct{}
}

func (*alarm) ReceiveMAD(_, _ ib.GID, _ []byte) {}
func (*alarm) Ends(ib.GID, []byte) bool         { return false }
func (a *alarm) Deadline() ib.Time              { return a.due }
func (a *alarm) Expire()                        { a.due = 0; close(a.rang) }

// A deadline that a stand-in sets is kept, also by a loop that sleeps for ever.
func TestStandInSetsDeadline(t *testing.T) {
	e := newEngine(t)
	a := &alarm{e: e, rang: make(chan struct{})}
	e.Do(func() { e.first.adapters.of[e.only()].manage = a })
	for range 20 {
		time.Sleep(time.Millisecond)
		e.Do(func() {})
	}
	e.Do(func() {
		a.due = e.first.clock.now + ib.Time(5*time.Millisecond)
		e.MADs(e.only()).Due(a.due)
	})
	select {
	case <-a.rang:
	case <-time.After(time.Minute):
		t.Error("the loop slept through a deadline")
	}
}
