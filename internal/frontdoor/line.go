package frontdoor

import (
	"fmt"
	"io"
	"os"

	"golang.org/x/sys/unix"

	"vrdma/internal/eventsock"
	"vrdma/internal/nic"
	"vrdma/internal/protocol"
	"vrdma/internal/rdmacm"
	"vrdma/internal/uverbs"
)

// A line connects a session with its client: the handles that go with messages, and what the
// two share. For a process it is a socket and descriptors (socketLine). For a virtual machine it
// will be messages to an agent there, which knows handles by name, and memory of the machine.
// Requests do not come through it: the loop reads them from the socket (requests.go).
type line interface {
	// Send sends a message with the handles that it names. They stay ours to close.
	Send(reply []byte, handles []uverbs.Handle) error
	// OpenQueues makes the memory for queues, and the doorbell.
	OpenQueues() (*nic.Arena, bell, error)
	// OpenEvents makes a way for events, and OpenSignal one for the news that there are
	// some; the client's ends are handles.
	OpenEvents() (nic.EventSink, uverbs.Handle, error)
	OpenSignal() (rdmacm.Signal, uverbs.Handle, error)
	// Close ends it: there are no more requests.
	Close() error
}

// A bell is a doorbell that is closed at the end.
type bell interface {
	nic.Doorbell
	io.Closer
}

// A socketLine is the line of a process. Its handles are files.
type socketLine struct{ *protocol.Conn }

// Send implements line.
func (l socketLine) Send(reply []byte, handles []uverbs.Handle) error {
	return l.WriteMessage(reply, descriptors(handles)...)
}

// descriptors are the descriptors behind handles, which a socketLine has made.
func descriptors(handles []uverbs.Handle) (fds []int) {
	for _, h := range handles {
		fds = append(fds, int(h.(*os.File).Fd()))
	}
	return fds
}

// OpenQueues implements line: an arena that the process maps, and an eventfd.
func (l socketLine) OpenQueues() (*nic.Arena, bell, error) {
	arena, err := nic.NewArena()
	if err != nil {
		return nil, nil, fmt.Errorf("the daemon cannot make memory for queues: %w", err)
	}
	fd, err := unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK)
	if err != nil {
		arena.Close()
		return nil, nil, fmt.Errorf("the daemon cannot make a doorbell: %w", err)
	}
	return arena, os.NewFile(uintptr(fd), "doorbell"), nil
}

// OpenEvents implements line.
func (l socketLine) OpenEvents() (nic.EventSink, uverbs.Handle, error) {
	s, end, err := eventsock.New()
	if err != nil {
		return nil, nil, err
	}
	return s, end, nil
}

// OpenSignal implements line.
func (l socketLine) OpenSignal() (rdmacm.Signal, uverbs.Handle, error) {
	s, end, err := eventsock.New()
	if err != nil {
		return nil, nil, err
	}
	return s, end, nil
}
