package vhostuser

import (
	"errors"
	"fmt"
	"os"
	"time"

	"golang.org/x/sys/unix"
)

// Kicks and calls are eventfds that the front end made and keeps. It may at any time make them block, or
// fill them, so nobody who holds a ring or answers requests reads or writes one: a ring has a goroutine that reads
// its kicks, a connection one that makes all its calls. Those that do not end are counted.

// mostHeld is how many goroutines may be left of front ends that have gone, when the next one comes. Each of them
// has a thread.
const mostHeld = 4

// spawn runs f, which an eventfd may hold up, on a goroutine.
func (c *Conn) spawn(f func()) {
	c.held.Add(1)
	go func() {
		defer c.held.Add(-1)
		f()
	}()
}

// atMost waits until n goroutines at most are running that eventfds may hold up, for a while.
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

// notHeldUp returns an error if more are running than those of the rings, which the last eventfds hold up.
func (c *Conn) notHeldUp() error {
	if !c.atMost(1 + len(c.rings) + 2*mostHeld) {
		return errors.New("the front end has its eventfds block")
	}
	return nil
}

// eventfd makes a file of a descriptor, which has to be an eventfd: others could be read for ever.
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

// interrupt has the driver interrupted, soon.
func (r *Ring) interrupt() {
	r.calls.Store(true)
	r.conn.wakeCaller()
}

func (c *Conn) wakeCaller() {
	select {
	case c.wake <- struct{}{}:
	default: // it has been told
	}
}

// caller makes the calls of all rings until the connection ends, and kicks those that have been enabled.
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
				f.Write(one) // it may be closed already
			}
		}
	}
}

// setCall replaces the file by which the driver is interrupted; nil: it is not.
func (r *Ring) setCall(f *os.File) {
	if old := r.call.Swap(f); old != nil {
		r.conn.spawn(func() { closeEvent(old) })
	}
}

// closeEvent closes an eventfd of whose users one may be held up, because it is full: Close would wait for it.
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
	kick *os.File
	stop chan struct{}
	done chan struct{}
}

// listen tells of kicks until the ring is stopped. The first time it is not asked: the driver may have kicked a
// back end before us.
func (l *listener) listen(r *Ring) {
	defer close(l.done)
	var b [8]byte
	for {
		if r.conn.device.Kicked != nil {
			r.conn.device.Kicked(r)
		}
		if _, err := l.kick.Read(b[:]); err != nil {
			return
		}
		select {
		case <-l.stop:
			return
		default:
		}
	}
}

// patience is how long a ring waits for its goroutine, which only a front end can hold up that makes its
// eventfd block again and again.
const patience = 5 * time.Second

// end returns when the goroutine has ended. A read that blocks is woken by a write.
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
