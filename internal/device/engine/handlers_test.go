package engine

import (
	"errors"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// echo is a handler that answers each message with what look says.
type echo struct {
	e      *Engine
	fd     int
	look   func() byte
	served atomic.Int64
	failed chan error
}

func (l *echo) Serve() {
	var b [16]byte
	n, err := unix.Read(l.fd, b[:])
	if err != nil || n == 0 {
		return
	}
	switch l.served.Add(1); b[0] {
	case 'p':
		panic("a mistake")
	case 's': // takes long: another goroutine goes on
		l.e.Pause(l.fd)
		go func() {
			unix.Write(l.fd, []byte{l.look()})
			l.e.Resume(l.fd)
		}()
	default:
		unix.Write(l.fd, []byte{l.look()})
	}
}

func (l *echo) Fail(err error) { l.failed <- err }

// newEcho makes a connection and returns the client's end of it.
func newEcho(t *testing.T, e *Engine, look func() byte) (*echo, int) {
	t.Helper()
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	if err := unix.SetNonblock(fds[0], true); err != nil {
		t.Fatal(err)
	}
	l := &echo{e: e, fd: fds[0], look: look, failed: make(chan error, 1)}
	e.Do(func() { err = e.Watch(fds[0], nil, l) })
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		e.Do(func() { e.Unwatch(fds[0]) })
		unix.Close(fds[0])
		unix.Close(fds[1])
	})
	minute := unix.NsecToTimeval(int64(time.Minute))
	if err := unix.SetsockoptTimeval(fds[1], unix.SOL_SOCKET, unix.SO_RCVTIMEO, &minute); err != nil {
		t.Fatal(err)
	}
	return l, fds[1]
}

// readAnswer reads again after a signal of the runtime: with a timeout the kernel does not restart the call.
func readAnswer(fd int, b []byte) (n int, err error) {
	for err = unix.EINTR; err == unix.EINTR; {
		n, err = unix.Read(fd, b)
	}
	return n, err
}

// ask sends one request and waits for its answer.
func ask(t *testing.T, fd int, request byte) byte {
	t.Helper()
	var b [16]byte
	if _, err := unix.Write(fd, []byte{request}); err != nil {
		t.Fatal(err)
	}
	if n, err := readAnswer(fd, b[:]); n != 1 || err != nil {
		t.Fatalf("no answer: %d bytes, %v", n, err)
	}
	return b[0]
}

// Work that was posted before a request on a connection runs before it, whether the loop sleeps, is about to, or has just
// been woken.
func TestPostedBeforeLine(t *testing.T) {
	a, b := pair(t)
	_, fd := newEcho(t, a.c.e, func() byte { return b.c.mem[0] })
	for i := range 2000 {
		mark := byte(i%250 + 1)
		a.c.mem[0] = mark
		for start := time.Now(); time.Since(start) < time.Duration(i%300)*time.Microsecond; {
		}
		a.post(wr{op: opWrite, n: 1, remote: b.c.base, rkey: b.mr.RKey})
		if got := ask(t, fd, 'x'); got != mark {
			t.Fatalf("request %d saw %d where %d was written before", i, got, mark)
		}
	}
}

// Every connection has its turn while others send all the time, and a paused connection is not served until it is resumed.
func TestLinesInTurn(t *testing.T) {
	e := newEngine(t)
	const many = 3*commandsPerPass + 1
	var stop atomic.Bool
	done := make(chan struct{}, many)
	var all []*echo
	for range many {
		l, fd := newEcho(t, e, func() byte { return 1 })
		all = append(all, l)
		go func() {
			defer func() { done <- struct{}{} }()
			var b [16]byte
			for i := 0; !stop.Load(); i++ {
				unix.Write(fd, []byte{"xs"[i%2]})
				if n, _ := readAnswer(fd, b[:]); n != 1 {
					t.Error("no answer")
					return
				}
			}
		}()
	}
	for deadline := time.Now().Add(time.Minute); ; time.Sleep(time.Millisecond) {
		least := int64(1 << 30)
		for _, l := range all {
			least = min(least, l.served.Load())
		}
		if least >= 20 {
			break
		}
		if time.Now().After(deadline) {
			t.Errorf("a connection was served %d times in a minute", least)
			break
		}
	}
	stop.Store(true)
	for range many {
		<-done
	}
}

// TestHandlerPanics: a panic while a connection is served is reported to that connection only.
func TestHandlerPanics(t *testing.T) {
	e := newEngine(t)
	bad, fd := newEcho(t, e, nil)
	_, other := newEcho(t, e, func() byte { return 7 })
	unix.Write(fd, []byte{'p'})
	select {
	case err := <-bad.failed:
		if err == nil || errors.Is(err, ErrStopped) {
			t.Errorf("Fail was told %v", err)
		}
	case <-time.After(time.Minute):
		t.Fatal("Fail was not called")
	}
	if got := ask(t, other, 'x'); got != 7 {
		t.Errorf("another connection: got %d, want 7", got)
	}
}

// A descriptor number that another connection has taken is not served as the previous one.
func TestLineNumberAgain(t *testing.T) {
	e := newEngine(t)
	for i := range 50 {
		fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
		if err != nil {
			t.Fatal(err)
		}
		l := &echo{e: e, fd: fds[0], look: func() byte { return byte(i) }}
		e.Do(func() { err = e.Watch(fds[0], nil, l) })
		if err != nil {
			t.Fatal(err)
		}
		unix.Write(fds[1], []byte{'x'})
		e.Do(func() { e.Unwatch(fds[0]) })
		before := l.served.Load()
		unix.Write(fds[1], []byte{'x'})
		e.Do(func() {})
		if after := l.served.Load(); after != before {
			t.Errorf("served %d times after Unwatch", after-before)
		}
		unix.Close(fds[0])
		unix.Close(fds[1])
	}
}
