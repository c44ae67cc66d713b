package routes

import (
	"errors"
	"os"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// A Watch hears when interfaces or addresses of a network namespace change.
type Watch struct {
	file   *os.File
	buf    []byte // of who waits
	closed chan struct{}
	once   sync.Once
}

// NewWatch takes over a socket of netlink's that was made in the namespace.
func NewWatch(fd int) (*Watch, error) {
	err := unix.Bind(fd, &unix.SockaddrNetlink{Family: unix.AF_NETLINK, Groups: unix.RTMGRP_LINK | unix.RTMGRP_IPV4_IFADDR | unix.RTMGRP_IPV6_IFADDR})
	if err == nil {
		err = unix.SetNonblock(fd, true)
	}
	if err != nil {
		unix.Close(fd)
		return nil, os.NewSyscallError("bind", err)
	}
	return &Watch{file: os.NewFile(uintptr(fd), "netlink"), buf: make([]byte, 4<<10), closed: make(chan struct{})}, nil
}

// Wait waits until something may have changed, or so long; 0: for ever. An error says that the watch is closed. What has changed is to
// be asked: messages are lost if there are many. One goroutine may wait.
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
	return nil // ENOBUFS, say, is news as well, and an empty message is no end
}

// mostForgotten is how many messages Pause reads: somebody may send them as fast as we read.
const mostForgotten = 4096

// Pause waits so long, or until the watch is closed, and forgets what was told until then.
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

// Sleep waits so long, or until the watch is closed: then it reports false.
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

// Close ends it, and who waits. It may be called again.
func (w *Watch) Close() error {
	w.once.Do(func() { close(w.closed) })
	return w.file.Close()
}
