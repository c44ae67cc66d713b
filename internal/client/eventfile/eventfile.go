// Package eventfile sends events to a process through a real file descriptor, one event per message. So poll, epoll and
// O_NONBLOCK work on it without interception.
//
// It is a socket pair. The daemon also keeps a duplicate of the client's end, to withdraw unread events. A client cannot block
// the daemon with its end.
package eventfile

import (
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

// A Socket is the daemon's end. It implements nic.EventSink and rdmacm.Signal. It belongs to one goroutine.
type Socket struct {
	fd   int // the daemon's end
	peer int // duplicate of the client's end
}

// New returns a socket and the client's end.
func New() (*Socket, *os.File, error) {
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, nil, fmt.Errorf("event descriptor: %w", err)
	}
	peer, err := unix.FcntlInt(uintptr(fds[1]), unix.F_DUPFD_CLOEXEC, 0)
	if err == nil {
		// Refuse data from the client: it would stay queued until Close, with descriptors whose closing a client can delay.
		err = unix.Shutdown(fds[0], unix.SHUT_RD)
	}
	if err != nil {
		unix.Close(fds[0])
		unix.Close(fds[1])
		return nil, nil, fmt.Errorf("event descriptor: %w", err)
	}
	return &Socket{fd: fds[0], peer: peer}, os.NewFile(uintptr(fds[1]), "events"), nil
}

// Fds returns the descriptors of the socket, which a daemon that continues it passes to Of: the daemon's end and the duplicate of
// the client's end. They stay the socket's. Events that the client has not read stay in them.
func (s *Socket) Fds() [2]int { return [2]int{s.fd, s.peer} }

// Of returns the socket with the descriptors of another daemon's socket. They belong to it from then on, unless Of returns an error.
func Of(fds [2]int) (*Socket, error) {
	for _, fd := range fds {
		switch kind, err := unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_TYPE); {
		case err != nil:
			return nil, fmt.Errorf("inherited event descriptor: %w", err)
		case kind != unix.SOCK_SEQPACKET:
			return nil, fmt.Errorf("inherited event descriptor: a socket of type %d", kind)
		}
	}
	return &Socket{fd: fds[0], peer: fds[1]}, nil
}

// Close closes the daemon's descriptors.
func (s *Socket) Close() {
	unix.Close(s.fd)
	unix.Close(s.peer)
}

// Post sends the first n bytes of an event; it returns false if the socket is full. The event is lost if the client is gone.
func (s *Socket) Post(event [16]byte, n int) bool {
	return s.send(event[:n]) != unix.EAGAIN
}

// Withdraw takes back the first unread event; n is 0 if there is none.
func (s *Socket) Withdraw() (event [16]byte, n int) {
	n, _, err := unix.Recvfrom(s.peer, event[:], unix.MSG_DONTWAIT)
	if err != nil || n < 0 {
		return event, 0
	}
	return event, n
}

// HangupFd returns a descriptor that reports a hang-up when the client has closed its end. The duplicate keeps the socket open,
// so the interposer shuts it down when it closes its last descriptor.
func (s *Socket) HangupFd() int { return s.fd }

// Raise makes the client's end readable, for a client whose events are stored elsewhere.
func (s *Socket) Raise() bool {
	return s.send([]byte{1}) == nil
}

// send never blocks, even if another process that shares the socket has cleared O_NONBLOCK.
func (s *Socket) send(b []byte) error { return unix.Send(s.fd, b, unix.MSG_DONTWAIT|unix.MSG_NOSIGNAL) }

// Lower makes the client's end unreadable again.
func (s *Socket) Lower() { s.Withdraw() }
