package server

import (
	"fmt"
	"io"
	"os"
	"syscall"

	"golang.org/x/sys/unix"

	"vrdma.dev/vrdma/internal/budget"
	"vrdma.dev/vrdma/internal/client/credentials"
	"vrdma.dev/vrdma/internal/client/eventfile"
	"vrdma.dev/vrdma/internal/client/protocol"
	"vrdma.dev/vrdma/internal/client/uverbs"
	"vrdma.dev/vrdma/internal/cm/rdmacm"
	"vrdma.dev/vrdma/internal/device/memory"
	"vrdma.dev/vrdma/internal/device/nic"
)

// A ClientEnd is the client's end of a session: it passes handles with messages, and makes the memory
// and descriptors that the two share. For a process it is a socket and descriptors (socketEnd). For a
// program in a virtual machine it is messages to an agent there, which names handles, and memory of the
// virtual machine (package vm). Requests do not pass through it: the loop reads them from the socket
// (requests.go).
type ClientEnd interface {
	// Send sends a message with the handles that it names. The caller still closes them.
	Send(reply []byte, handles []uverbs.Handle) error
	// Welcome answers the greeting and passes files to the client. A file is nil if the two share
	// something else instead.
	Welcome(w *protocol.Welcome, files ...*os.File) error
	// NewSpace makes the backing of a process's registered memory.
	NewSpace(quota uint64) (*memory.Space, error)
	// Extents translates the extents of a buffer for package memory. The caller calls done when
	// the memory is no longer in use, also after a later error; done may be nil.
	// number names the memory for the next daemon; 0: done is nil.
	Extents(in []protocol.Extent) (out []memory.Extent, number uint32, done func(), err error)
	// OpenQueues makes the memory for queues, and the doorbell. It charges what exceeds
	// nic.SessionBill to the account.
	OpenQueues(account *budget.Account) (*nic.Arena, Bell, error)
	// OpenEvents makes a channel for events, and OpenSignal one that only signals that there are
	// events. The handles are the client's ends.
	OpenEvents() (nic.EventSink, uverbs.Handle, error)
	OpenSignal() (rdmacm.Signal, uverbs.Handle, error)
	// Vouched reports whether the client is authenticated already, so that the server does not
	// check its credentials.
	Vouched() bool
	// Workload returns the number of the client's workload, 0 if it is unknown, and the name of its
	// container.
	Workload(who *credentials.Caller) (number uint64, container string)
	// Identify finds the namespaces of a process, and opens its memory.
	Identify(who *credentials.Caller) credentials.Identity
	// Close ends the connection: no more requests arrive. The session ends after it has seen that.
	Close() error
	// Over reports that the daemon no longer uses anything that the two shared. A process sees that
	// by the end of its socket.
	Over()
	// Number names a program of a virtual machine in the state of the machine (package vm); 0: the client is a process.
	Number() uint64
}

// Machines are the virtual machines of a daemon that takes over from another one.
type Machines interface {
	// Client returns the program with a number of the machine that has a NIC. It does so once.
	Client(nic string, number uint64) (Continued, error)
}

// Continued is the end of a program of a virtual machine after a live upgrade.
type Continued interface {
	ClientEnd
	// End is the connection that the session serves, and Caller the program.
	End() *protocol.Conn
	Caller() credentials.Caller
	// Backing is that of NewSpace, and Released returns what Extents has returned as done for a number.
	Backing() memory.Backing
	Released(number uint32) func()
	// Queues returns the memory of OpenQueues, with its contents. bell is the doorbell.
	Queues(account *budget.Account, bell *os.File) (*nic.Arena, error)
	// Sink returns that of OpenEvents or OpenSignal with a number.
	Sink(number uint32) (Sink, error)
}

// A Sink brings events to a program of a virtual machine.
type Sink interface {
	nic.EventSink
	rdmacm.Signal
	// Number names the sink in the state.
	Number() uint32
}

// A Bell is a doorbell that the session closes.
type Bell interface {
	nic.Doorbell
	io.Closer
}

// A socketEnd is the end of a process. Its handles are files.
type socketEnd struct{ *protocol.Conn }

// Send implements ClientEnd.
func (l socketEnd) Send(reply []byte, handles []uverbs.Handle) error {
	return l.WriteMessage(reply, descriptors(handles)...)
}

// descriptors returns the descriptors of handles that a socketEnd has made.
func descriptors(handles []uverbs.Handle) (fds []int) {
	for _, h := range handles {
		fds = append(fds, int(h.(*os.File).Fd()))
	}
	return fds
}

// OpenQueues implements ClientEnd: an arena that the process maps, and an eventfd.
func (l socketEnd) OpenQueues(*budget.Account) (*nic.Arena, Bell, error) {
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

// OpenEvents implements ClientEnd.
func (l socketEnd) OpenEvents() (nic.EventSink, uverbs.Handle, error) {
	s, end, err := eventfile.New()
	if err != nil {
		return nil, nil, err
	}
	return s, end, nil
}

// OpenSignal implements ClientEnd.
func (l socketEnd) OpenSignal() (rdmacm.Signal, uverbs.Handle, error) {
	s, end, err := eventfile.New()
	if err != nil {
		return nil, nil, err
	}
	return s, end, nil
}

// Welcome implements ClientEnd.
func (l socketEnd) Welcome(w *protocol.Welcome, files ...*os.File) error {
	var fds []int
	for _, f := range files {
		fds = append(fds, int(f.Fd()))
	}
	return l.WriteMessage(w.Append(nil), fds...)
}

// NewSpace implements ClientEnd: a memfd.
func (l socketEnd) NewSpace(quota uint64) (*memory.Space, error) { return memory.NewSpace(quota) }

// Extents implements ClientEnd. The shim maps the process's memfd at offset = address.
func (l socketEnd) Extents(in []protocol.Extent) ([]memory.Extent, uint32, func(), error) {
	out := make([]memory.Extent, len(in))
	for i, e := range in {
		rest := e.Prot &^ (protocol.ProtRead | protocol.ProtWrite)
		x := memory.Extent{Start: e.Start, Length: e.Length, Kind: memory.ExtentKind(e.Kind), Prot: uint8(e.Prot & 3), Offset: e.Start}
		switch e.Kind {
		case protocol.ExtentForeign:
			x.Why, rest = uint8(rest>>protocol.WhyShift), rest&^(0xff<<protocol.WhyShift)
		case protocol.ExtentShared:
			x.Descriptor, rest = int32(rest>>protocol.DescriptorShift), rest&(1<<protocol.DescriptorShift-1)
		}
		if e.Kind > protocol.ExtentShared || rest != 0 {
			return nil, 0, nil, syscall.EINVAL
		}
		out[i] = x
	}
	return out, 0, nil, nil
}

// Number implements ClientEnd.
func (l socketEnd) Number() uint64 { return 0 }

// Over implements ClientEnd.
func (l socketEnd) Over() {}

// Vouched implements ClientEnd.
func (l socketEnd) Vouched() bool { return false }

// Workload implements ClientEnd.
func (l socketEnd) Workload(who *credentials.Caller) (uint64, string) {
	number, _ := credentials.NamespaceCookie(l.Conn)
	return number, who.Container(l.Conn)
}

// Identify implements ClientEnd.
func (l socketEnd) Identify(who *credentials.Caller) credentials.Identity {
	who.Locate(l.Conn)
	return credentials.Identify(l.Conn, who)
}
