package routes

import (
	"errors"
	"os"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// A Watch waits for changes of the interfaces or addresses of a network namespace.
type Watch struct {
	file   *os.File
	buf    []byte // buffer of the waiting goroutine
	closed chan struct{}
	once   sync.Once
}

// NewWatch takes over a netlink socket that was created in the namespace.
func NewWatch(fd int) (*Watch, error) {
	err := unix.Bind(fd, &unix.SockaddrNetlink{Family: unix.AF_NETLINK, Groups: unix.RTMGRP_LINK | unix.RTMGRP_IPV4_IFADDR | unix.RTMGRP_IPV6_IFADDR})
	if err == nil {
		err = unix.SetNonblock(fd, true)
	}
	if err != nil {
		unix.Close(fd)
		return nil, os.NewSyscallError("bind", err)
	}
	return watchOf(fd), nil
}

func watchOf(fd int) *Watch {
	return &Watch{file: os.NewFile(uintptr(fd), "netlink"), buf: make([]byte, 4<<10), closed: make(chan struct{})}
}

// Wait waits until something may have changed, or for the given time; 0 waits forever. An error means that the watch is closed. The
// caller must query the new state, because messages can be lost. Only one goroutine may wait.
func (w *Watch) Wait(long time.Duration) error {
	var end time.Time
	if long > 0 {
		end = time.Now().Add(long)
	}
	if err := w.file.SetReadDeadline(end); err != nil {
		return err
	}
	if _, err := w.file.Read(w.buf); errors.Is(err, os.ErrClosed) {
		return err
	}
	return nil // ENOBUFS also means a change, and an empty message is not the end
}

// mostForgotten limits the messages that Pause reads: a sender may be as fast as the reader.
const mostForgotten = 4096

// Pause waits for the given time, or until the watch is closed, and discards the messages until then.
func (w *Watch) Pause(long time.Duration) error {
	if !w.Sleep(long) {
		return os.ErrClosed
	}
	if err := w.file.SetReadDeadline(time.Time{}); err != nil {
		return err
	}
	raw, err := w.file.SyscallConn()
	if err != nil {
		return err
	}
	return raw.Read(func(fd uintptr) bool {
		for range mostForgotten {
			if _, err := unix.Read(int(fd), w.buf); err != nil && err != unix.ENOBUFS && err != unix.EINTR {
				break
			}
		}
		return true
	})
}

// Sleep waits for the given time. It returns false if the watch is closed meanwhile.
func (w *Watch) Sleep(long time.Duration) bool {
	t := time.NewTimer(long)
	defer t.Stop()
	select {
	case <-t.C:
		return true
	case <-w.closed:
		return false
	}
}

// Close closes the watch and ends a waiting call. It may be called repeatedly.
func (w *Watch) Close() error {
	w.once.Do(func() { close(w.closed) })
	return w.file.Close()
}
