// Package eventfile carries events to a process through a real file descriptor, one event a
// message, so that poll, epoll and O_NONBLOCK work on it unhooked.
//
// It is a socket pair. The daemon keeps a duplicate of the client's end as well, to take back
// what nobody has read. Nothing that the client does with its end can make the daemon wait.
package eventfile

import (
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

// A Socket is the daemon's side. It is a nic.EventSink, and an rdmacm.Signal. It belongs to
// one goroutine.
type Socket struct {
	fd   int // our end, non-blocking
	peer int // duplicate of the client's
}

// New makes a socket and returns the client's end besides.
func New() (*Socket, *os.File, error) {
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, nil, fmt.Errorf("event descriptor: %w", err)
	}
	peer, err := unix.FcntlInt(uintptr(fds[1]), unix.F_DUPFD_CLOEXEC, 0)
	if err == nil {
		err = unix.SetNonblock(fds[0], true)
	}
	if err == nil {
		// What the client sent would wait here until Close, and descriptors with it:
		// to close those may take as long as the client likes.
		err = unix.Shutdown(fds[0], unix.SHUT_RD)
	}
	if err != nil {
		unix.Close(fds[0])
		unix.Close(fds[1])
		return nil, nil, fmt.Errorf("event descriptor: %w", err)
	}
	return &Socket{fd: fds[0], peer: peer}, os.NewFile(uintptr(fds[1]), "events"), nil
}

// Close closes our side.
func (s *Socket) Close() {
	unix.Close(s.fd)
	unix.Close(s.peer)
}

// Post sends the first n bytes of an event; false if there is no room for it now. Where the
// client is gone it is lost.
func (s *Socket) Post(event [16]byte, n int) bool {
	_, err := unix.Write(s.fd, event[:n])
	return err != unix.EAGAIN
}

// Withdraw takes back the first event that the client has not read; n is 0 if there is none.
func (s *Socket) Withdraw() (event [16]byte, n int) {
	n, _, err := unix.Recvfrom(s.peer, event[:], unix.MSG_DONTWAIT)
	if err != nil || n < 0 {
		return event, 0
	}
	return event, n
}

// HangupFd returns a descriptor of which poll reports a hang-up when the client has closed its end.
// The duplicate keeps the socket, so the shim shuts it down when its last descriptor goes.
func (s *Socket) HangupFd() int { return s.fd }

// Raise makes the client's end readable, and Lower makes it unreadable again. They are for
// a client whose events lie elsewhere.
func (s *Socket) Raise() bool {
	_, err := unix.Write(s.fd, []byte{1})
	return err == nil
}

// Lower undoes Raise.
func (s *Socket) Lower() { s.Withdraw() }
