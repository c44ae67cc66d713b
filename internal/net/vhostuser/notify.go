package vhostuser

import (
	"context"
	"errors"
	"fmt"
	"os"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"
)

// Kicks and calls are eventfds that the front end created and keeps. It can make them block, or fill them, at any time. So a goroutine
// that holds a ring or answers requests never reads or writes one: each ring has a goroutine that reads its kicks, and each connection
// one that makes all calls. Goroutines that do not end are counted.

// mostHeld is the number of blocked goroutines of old front ends above which a new one is refused. Each occupies a thread.
const mostHeld = 4

// spawn runs f, which an eventfd may block, on a goroutine.
func (c *Conn) spawn(f func()) {
	c.held.Add(1)
	go func() {
		defer c.held.Add(-1)
		f()
	}()
}

// atMost waits for a while until at most n such goroutines are running.
func (c *Conn) atMost(n int) bool {
	deadline := time.Now().Add(patience)
	for pause := 10 * time.Microsecond; int(c.held.Load()) > n; pause = min(2*pause, 10*time.Millisecond) {
		if time.Now().After(deadline) {
			return false
		}
		time.Sleep(pause)
	}
	return true
}

// notHeldUp returns an error if more goroutines are running than the rings need, because eventfds block them.
func (c *Conn) notHeldUp() error {
	if !c.atMost(1 + len(c.rings) + 2*mostHeld) {
		return errors.New("the front end has its eventfds block")
	}
	return nil
}

// eventfd converts a descriptor to a file. The descriptor must be an eventfd: reading another file could block forever.
func eventfd(fd int) (*os.File, error) {
	name, err := os.Readlink(fmt.Sprintf("/proc/self/fd/%d", fd))
	if err == nil && name != "anon_inode:[eventfd]" {
		err = errors.New("the descriptor is no eventfd")
	}
	if err == nil {
		err = unix.SetNonblock(fd, true)
	}
	if err != nil {
		unix.Close(fd)
		return nil, err
	}
	return os.NewFile(uintptr(fd), "eventfd"), nil
}

var one = []byte{1, 0, 0, 0, 0, 0, 0, 0}

// interrupt requests an interrupt of the driver.
func (r *Ring) interrupt() {
	r.calls.Store(true)
	r.conn.wakeCaller()
}

func (c *Conn) wakeCaller() {
	select {
	case c.wake <- struct{}{}:
	default: // a request is pending already
	}
}

// caller makes the calls of all rings, and kicks newly enabled rings, until the connection ends.
func (c *Conn) caller() {
	for {
		select {
		case <-c.ended:
			return
		case <-c.wake:
		}
		for _, r := range c.rings {
			if r.kicks.Swap(false) {
				r.mu.Lock()
				l := r.listener
				r.mu.Unlock()
				if l != nil {
					l.kick.Write(one)
				}
			}
		}
		for _, r := range c.rings {
			if !r.calls.Swap(false) {
				continue
			}
			if f := r.call.Load(); f != nil {
				f.Write(one) // the file may be closed already
			}
		}
	}
}

// setCall replaces the eventfd that interrupts the driver; nil disables interrupts.
func (r *Ring) setCall(f *os.File) {
	if old := r.call.Swap(f); old != nil {
		r.conn.spawn(func() { closeEvent(old) })
	}
}

// closeEvent closes an eventfd that may block one of its users because it is full: Close would wait for that user.
func closeEvent(f *os.File) {
	if raw, err := f.SyscallConn(); err == nil {
		raw.Control(func(fd uintptr) {
			var b [8]byte
			unix.SetNonblock(int(fd), true)
			unix.Read(int(fd), b[:])
		})
	}
	f.Close()
}

// A listener waits for the kicks of a started ring.
type listener struct {
	kick    *os.File
	stop    chan struct{}
	done    chan struct{}
	reading atomic.Bool // a kick may be read
}

// listen handles kicks until the ring is stopped. The first time it does not wait: the driver may have kicked an earlier back end.
func (l *listener) listen(r *Ring) {
	defer close(l.done)
	var b [8]byte
	for {
		if r.conn.device.Kicked != nil {
			r.conn.device.Kicked(r)
		}
		l.reading.Store(true)
		_, err := l.kick.Read(b[:])
		l.reading.Store(false)
		switch {
		case errors.Is(err, os.ErrDeadlineExceeded):
			l.resume(r)
		case err != nil:
			return
		}
		select {
		case <-l.stop:
			return
		default:
		}
	}
}

// suspend leaves kicks in the eventfd from now on: the next daemon must get them. The ring is held. Only a front end that makes its
// eventfd block delays it.
func (l *listener) suspend(ctx context.Context) {
	l.kick.SetReadDeadline(time.Unix(1, 0)) // fails if it is closed
	const most = 100 * time.Millisecond
	for begin := time.Now(); l.reading.Load() && ctx.Err() == nil && time.Since(begin) < most; {
		time.Sleep(20 * time.Microsecond)
	}
}

// resume waits until the ring is not held any more. Then kicks are read again.
func (l *listener) resume(r *Ring) {
	r.mu.Lock()
	defer r.mu.Unlock()
	l.kick.SetReadDeadline(time.Time{}) // fails if it is closed
}

// patience is how long a ring waits for its goroutine. Only a front end that makes its eventfd block repeatedly can delay it.
const patience = 5 * time.Second

// end waits until the goroutine has ended. A write wakes a blocked read.
func (l *listener) end(c *Conn) {
	close(l.stop)
	c.spawn(func() {
		l.kick.Write(one)
		l.kick.Close()
	})
	select {
	case <-l.done:
	case <-time.After(patience):
	}
}
