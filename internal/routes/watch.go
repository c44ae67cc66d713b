package routes

import (
	"errors"
	"os"

	"golang.org/x/sys/unix"
)

// A Watch hears when interfaces or addresses of a network namespace change.
type Watch struct{ file *os.File }

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
	return &Watch{os.NewFile(uintptr(fd), "netlink")}, nil
}

// Wait waits until something may have changed; an error says that nobody is told any more. What has changed is to be asked:
// messages are lost if there are many.
func (w *Watch) Wait() error {
	_, err := w.file.Read(make([]byte, 64<<10))
	if errors.Is(err, unix.ENOBUFS) {
		return nil
	}
	return err
}

// Close ends it, and who waits.
func (w *Watch) Close() error { return w.file.Close() }
