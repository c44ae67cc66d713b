package engine

import (
	"errors"
	"os"
	"strings"
	"testing"
	"time"

	"vrdma.dev/vrdma/internal/device/nic"
)

// TestFaultOfNobody: a fault in memory that belongs to no session is a bug of the daemon, and ends it.
func TestFaultOfNobody(t *testing.T) {
	e := newEngine(t)
	newClient(t, e).newQP(rc)
	e.Do(func() {
		defer func() {
			if recover() == nil {
				t.Error("the fault was taken for a client's")
			}
			if e.only().Sessions() != 1 {
				t.Error("a session was closed for it")
			}
		}()
		e.first.contain(func() bool { panic(faultAt(1)) })
	})
}

// TestPanicInCommand: a panic in a command returns from Do as an error, whether the loop is awake or asleep, and
// nothing else is disturbed.
func TestPanicInCommand(t *testing.T) {
	a, b := pair(t)
	e := a.c.e
	for i := range 40 {
		if i%2 == 0 {
			time.Sleep(time.Millisecond) // the loop falls asleep
		}
		if err := e.Do(func() { panic("a mistake") }); err == nil || !strings.Contains(err.Error(), "a mistake") {
			t.Fatalf("Do: %v, want the panic", err)
		}
		a.post(wr{op: opWrite, flags: signal, n: 8, remote: b.c.base, rkey: b.mr.RKey})
		if w := a.wait(); w.status != 0 {
			t.Fatalf("write after a panic: %+v", w)
		}
	}
}

// TestFaultInCommand: a fault in a client's memory ends that client, also where a command of
// another touches it.
func TestFaultInCommand(t *testing.T) {
	evicted := make(chan *nic.Session, 1)
	e := newEngine(t)
	e.Do(func() { e.first.opts.Evict = func(s *nic.Session) { evicted <- s } })
	victim, other := newClient(t, e), newClient(t, e)
	at := faultAt(addressOf(victim.s.Arena.Doorbell()))
	if err := e.Do(func() { panic(at) }); err == nil {
		t.Error("the command succeeded")
	}
	select {
	case s := <-evicted:
		if s != victim.s {
			t.Error("another client was ended")
		}
	case <-time.After(time.Minute):
		t.Fatal("nobody was ended")
	}
	e.Do(func() {
		if victim.s.Served() || !other.s.Served() {
			t.Errorf("served: the victim %v, the other %v; want false, true", victim.s.Served(), other.s.Served())
		}
	})
}

// TestDoAfterStop: Do returns an error for a function that does not run.
func TestDoAfterStop(t *testing.T) {
	e := newEngine(t)
	e.Stop()
	if err := e.Do(func() { t.Error("it ran") }); !errors.Is(err, ErrStopped) || !errors.Is(err, os.ErrClosed) {
		t.Errorf("Do: %v, want ErrStopped", err)
	}
}
