package engine

import (
	"math"
	"sync/atomic"
	"testing"
	"time"
)

// A letterbox is a box whose requests are numbers; it is open while look says so.
type letterbox struct {
	*echo
	open   atomic.Bool
	letter atomic.Int64 // 0: none
	answer func() byte
	got    chan byte
	bad    atomic.Bool // its memory faults
	panics chan error
}

func (b *letterbox) Asked() bool {
	if b.bad.Load() {
		panic(memoryFault{})
	}
	return b.letter.Load() != 0
}

func (b *letterbox) Shut() bool {
	b.open.Store(false)
	return b.Asked()
}

func (b *letterbox) Serve() {
	if b.letter.Swap(0) != 0 {
		b.got <- b.answer()
	}
}

func (b *letterbox) Fail(err error) { b.panics <- err }

// A memoryFault is what the runtime makes of a fault.
type memoryFault struct{}

func (memoryFault) Error() string { return "a fault" }
func (memoryFault) RuntimeError() {}
func (memoryFault) Addr() uintptr { return 1 }

func newLetterbox(t *testing.T, e *Engine, answer func() byte) *letterbox {
	t.Helper()
	l, _ := newEcho(t, e, nil)
	return &letterbox{echo: l, answer: answer, got: make(chan byte, 1), panics: make(chan error, 1)}
}

// look opens it on the loop.
func (b *letterbox) look() (ok bool) {
	b.e.Do(func() {
		if ok = b.e.Look(b.fd, b); ok {
			b.open.Store(true)
		}
	})
	return ok
}

// Work that was posted before a request in a mailbox runs before it. A request is also served if it comes while the
// mailbox is being shut because the loop goes to sleep.
func TestPostedBeforeBox(t *testing.T) {
	a, b := pair(t)
	e := a.c.e
	box := newLetterbox(t, e, func() byte { return b.c.mem[0] })
	for i := range 1000 {
		mark := byte(i%250 + 1)
		a.c.mem[0] = mark
		if !box.look() {
			t.Fatal("there are too many boxes")
		}
		for start := time.Now(); time.Since(start) < time.Duration(i%120)*time.Microsecond; {
		}
		a.post(wr{op: opWrite, n: 1, remote: b.c.base, rkey: b.mr.RKey})
		// A client asks only while the box is open. If it is shut right now, Shut sees
		// the request, or we see that it is shut.
		box.letter.Store(1)
		if !box.open.Load() && box.letter.CompareAndSwap(1, 0) {
			continue
		}
		select {
		case got := <-box.got:
			if got != mark {
				t.Fatalf("request %d saw %d where %d was written before", i, got, mark)
			}
		case <-time.After(time.Minute):
			t.Fatalf("request %d is not served", i)
		}
	}
}

// An idle loop shuts the mailboxes and sleeps; a busy one shuts those that are silent.
func TestBoxesAreShut(t *testing.T) {
	e := newEngine(t)
	box := newLetterbox(t, e, func() byte { return 1 })
	box.look()
	wait := func(what string, cond func() bool) {
		t.Helper()
		for deadline := time.Now().Add(time.Minute); !cond(); time.Sleep(time.Millisecond) {
			if time.Now().After(deadline) {
				t.Fatalf("%s: not within a minute", what)
			}
		}
	}
	wait("the box of a loop that sleeps is shut", func() bool { return !box.open.Load() })

	busy := newLetterbox(t, e, func() byte { return 2 })
	busy.look()
	box.look()
	var stop atomic.Bool
	done := make(chan struct{})
	go func() {
		defer close(done)
		for !stop.Load() {
			busy.look()
			busy.letter.Store(1)
			select {
			case <-busy.got:
			case <-time.After(10 * time.Millisecond): // it was shut
				busy.letter.Store(0)
			}
		}
	}()
	wait("a silent box is shut", func() bool { return !box.open.Load() })
	stop.Store(true)
	<-done
}

// TestMostBoxes: the loop polls at most mostMailboxes mailboxes. When one is closed, another can be opened.
func TestMostBoxes(t *testing.T) {
	e := newEngine(t)
	var all []*letterbox
	for range mostMailboxes + 1 {
		all = append(all, newLetterbox(t, e, func() byte { return 1 }))
	}
	e.Do(func() {
		e.first.handlers.shutMailboxes()
		for i, b := range all {
			if ok := e.Look(b.fd, b); ok != (i < mostMailboxes) {
				t.Errorf("box %d: Look says %v", i, ok)
			}
		}
		if !e.Look(all[0].fd, all[0]) {
			t.Error("one that is open already is refused")
		}
		e.Unwatch(all[1].fd)
		if last := all[mostMailboxes]; !e.Look(last.fd, last) {
			t.Error("a connection that is gone keeps its box open")
		}
	})
}

// TestBoxFaults: a fault in the memory of a mailbox is reported to that mailbox only.
func TestBoxFaults(t *testing.T) {
	e := newEngine(t)
	bad, good := newLetterbox(t, e, nil), newLetterbox(t, e, func() byte { return 7 })
	bad.bad.Store(true)
	bad.look()
	select {
	case err := <-bad.panics:
		if err == nil {
			t.Error("Fail was told nothing")
		}
	case <-time.After(time.Minute):
		t.Fatal("Fail was not called")
	}
	for {
		good.look()
		good.letter.Store(1)
		select {
		case got := <-good.got:
			if got != 7 {
				t.Errorf("another box: got %d, want 7", got)
			}
			return
		case <-time.After(10 * time.Millisecond): // it was shut before
			good.letter.Store(0)
		}
	}
}

// A rudeBox is a mailbox of a flooding client: it has a request whenever the loop polls it.
type rudeBox struct {
	*echo
	served *atomic.Int64
}

func (b rudeBox) Asked() bool { return true }
func (b rudeBox) Shut() bool  { return true }
func (b rudeBox) Serve()      { b.served.Add(1) }

// Clients that use their mailboxes all the time have one request each served before another client is served, in a
// mailbox or on a connection.
func TestRudeBoxes(t *testing.T) {
	e := newEngine(t)
	const many = mostMailboxes - 1
	var rude atomic.Int64
	var all []rudeBox
	for range many {
		l, _ := newEcho(t, e, nil)
		all = append(all, rudeBox{l, &rude})
	}
	var before atomic.Int64
	box := newLetterbox(t, e, func() byte {
		return byte(min(255, max(0, rude.Load()-before.Load())))
	})
	_, client := newEcho(t, e, func() byte { return 9 })
	look := func() {
		e.Do(func() {
			for _, b := range all {
				e.Look(b.fd, b)
			}
		})
	}
	// With one processor that another process needs too, a round takes a second: the loop never sleeps here.
	const rounds, atLeast = 200, 10
	for i, start := 0, time.Now(); i < rounds && (i < atLeast || time.Since(start) < 20*time.Second); i++ {
		look()
		for served := false; !served; {
			before.Store(math.MaxInt64) // until the request is there, nobody comes before it
			if !box.look() {
				t.Fatal("there is no room for a box")
			}
			box.letter.Store(1)
			before.Store(rude.Load())
			for shut := false; !served && !shut; {
				select {
				case n := <-box.got:
					if served = true; int(n) > many+2*commandsPerPass {
						t.Fatalf("request %d: %d of others were served before it, of %d that there were", i, n, many)
					}
				case <-time.After(10 * time.Millisecond): // it was shut before, or the loop has no processor
					shut = !box.open.Load() && box.letter.CompareAndSwap(1, 0)
				}
			}
		}
		if b := ask(t, client, 'x'); b != 9 {
			t.Fatalf("a connection: answer %d", b)
		}
	}
	e.Do(func() {
		for _, b := range all {
			e.Leave(b.fd)
		}
	})
}
