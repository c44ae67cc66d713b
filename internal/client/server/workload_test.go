package server

import (
	"errors"
	"path/filepath"
	"runtime"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"vrdma.dev/vrdma/internal/client/protocol"
	"vrdma.dev/vrdma/internal/device/nic"
	"vrdma.dev/vrdma/internal/device/registry"
	"vrdma.dev/vrdma/internal/events"
)

// elsewhere runs f on a thread in a network namespace of its own.
func elsewhere(t *testing.T, f func()) {
	t.Helper()
	done := make(chan error, 1)
	go func() {
		runtime.LockOSThread() // and never unlocked: the thread ends with the goroutine
		err := unix.Unshare(unix.CLONE_NEWNET)
		if err == nil {
			f()
		}
		done <- err
	}()
	if err := <-done; err != nil {
		t.Fatalf("a network namespace: %v (the test needs root)", err)
	}
}

// refusals receives the refused callers, as "NIC: REASON".
type refusals chan<- string

func (r refusals) Record(e events.Event) {
	if e.Verb == events.Refused {
		r <- e.Object.Path() + strings.TrimPrefix(e.Reason, "open")
	}
}

// exclusiveListener is a server with a listener for one workload at a time, where another workload waits for a limited
// time.
func exclusiveListener(t *testing.T, handover time.Duration, change ...func(*Listener)) (s *Server, enter func(protocol.Kind) (*protocol.Conn, error), refused chan string) {
	t.Helper()
	refused = make(chan string, 10)
	blue := &registry.NIC{Name: "red/blue", Network: "blue", Device: nic.New(nic.Config{Name: "rxe0", GIDs: testNIC().GIDs})}
	d := Listener{Socket: filepath.Join(t.TempDir(), "blue.sock"), NIC: blue, Exclusive: true}
	for _, f := range change {
		f(&d)
	}
	s = testServerWith(t, Config{
		Listeners: []Listener{{}, d},
		Events:    refusals(refused),
		handover:  handover,
	})
	return s, func(kind protocol.Kind) (*protocol.Conn, error) {
		c, err := protocol.Dial(s.listeners.list[1].Socket, protocol.Hello{Kind: kind, Program: "holder"})
		if err != nil {
			return nil, err
		}
		t.Cleanup(func() { c.Close() })
		return c.Conn, nil
	}, refused
}

// TestOneWorkload: a listener for one workload at a time refuses others, and the error names the workload that has it. Tools
// that only query are not refused.
func TestOneWorkload(t *testing.T) {
	var programs atomic.Int32
	t.Cleanup(func() {
		if n := programs.Load(); n != 0 {
			t.Errorf("%d programs are counted when all have gone", n)
		}
	})
	s, enter, refused := exclusiveListener(t, 100*time.Millisecond, func(d *Listener) { d.Programs = &programs })
	if _, err := enter(protocol.KindProcess); err != nil {
		t.Fatal(err)
	}
	if _, err := enter(protocol.KindProcess); err != nil {
		t.Fatalf("a second program of the same workload: %v", err)
	}
	if n := programs.Load(); n != 2 {
		t.Errorf("%d programs are counted: want 2", n)
	}
	elsewhere(t, func() {
		if _, err := enter(protocol.KindProcess); !errors.Is(err, syscall.EBUSY) || !strings.Contains(err.Error(), "NIC red/blue is busy: it is in use by holder (pid ") {
			t.Errorf("another workload: %v, want EBUSY and who has it", err)
		}
		if _, err := enter(protocol.KindControl); err != nil {
			t.Errorf("another workload looks: %v", err)
		}
		if c, err := protocol.Dial(s.listeners.list[0].Socket, protocol.Hello{Kind: protocol.KindProcess}); err != nil {
			t.Errorf("another workload at a listener that is for all: %v", err)
		} else {
			c.Close()
		}
	})
	if why := <-refused; !strings.HasPrefix(why, "red/blue: it is in use by holder (pid ") {
		t.Errorf("the event says %q", why)
	}
}

// The next workload gets the listener when the last program of the first has ended: it waits for a program that is just
// ending.
func TestNextWorkload(t *testing.T) {
	_, enter, _ := exclusiveListener(t, time.Minute)
	first, err := enter(protocol.KindProcess)
	if err != nil {
		t.Fatal(err)
	}
	second, err := enter(protocol.KindProcess)
	if err != nil {
		t.Fatal(err)
	}
	first.Close()
	go func() {
		time.Sleep(300 * time.Millisecond) // it is right whichever is first
		second.Close()
	}()
	elsewhere(t, func() {
		if _, err := enter(protocol.KindProcess); err != nil {
			t.Errorf("the next workload: %v", err)
		}
	})
}
