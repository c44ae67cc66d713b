package vhostuser

import (
	"errors"
	"fmt"
	"os"
	"time"

	"golang.org/x/sys/unix"
)

// Kicks and calls are eventfds that the front end made and keeps. It may at any time make them block, or
// fill them, so nobody who holds a ring reads or writes one: a ring has a goroutine that reads its
// kicks, a connection one that makes all its calls.

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
	select {
	case r.conn.wake <- struct{}{}:
	default: // it has been told
	}
}

// caller makes the calls of all rings until the connection ends.
func (c *Conn) caller() {
	for {
		select {
		case <-c.ended:
			return
		case <-c.wake:
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
		go closeEvent(old)
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
func (l *listener) end() {
	close(l.stop)
	go func() {
		l.kick.Write(one)
		l.kick.Close()
	}()
	select {
	case <-l.done:
	case <-time.After(patience):
	}
}
