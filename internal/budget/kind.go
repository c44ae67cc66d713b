package budget

import (
	"fmt"
	"syscall"
)

// A Kind is a limited resource.
type Kind uint8

const (
	// Files are descriptors of the daemon: RLIMIT_NOFILE.
	Files Kind = iota
	// Mappings are mappings of the daemon's address space, of a gibibyte each: vm.max_map_count.
	Mappings
	// State is the daemon's own memory for objects and connections, in bytes.
	State
	// Rings are bytes of queues in shared memory.
	Rings
	// Memory is registered memory, in bytes.
	Memory
	// Holes are registered bytes whose pages do not exist yet: the daemon's first access creates them, and the kernel charges them to the
	// daemon.
	Holes
	// Tools are connections of status, trace and similar tools, including `vrdma run`. A trace counts as many: it has a long
	// queue, and every command adds to it.
	Tools
	// Devices, QueuePairs, CompletionQueues and Connections are numbers of objects. Only tenants have limits for them; 0 means none.
	Devices
	QueuePairs
	CompletionQueues
	Connections
	// Requests are connection requests per second. They are not held: see Pace.
	Requests

	kinds

	// counted is the first kind for which a limit of 0 means none.
	counted = int(Devices)
)

// kindText has the name of each kind, the errno for a program at the limit, and what to do then.
var kindText = [kinds]struct {
	name  string
	errno syscall.Errno
	do    string
}{
	Files:    {"open files of the daemon", syscall.EMFILE, "end some programs, or raise the daemon's ulimit -n"},
	Mappings: {"mappings of the daemon", syscall.ENOMEM, "end some programs, or raise vm.max_map_count"},
	State:    {"bytes of the daemon's memory", syscall.ENOMEM, "destroy queue pairs and other objects"},
	Rings:    {"bytes of queues", syscall.ENOMEM, "ask for smaller or fewer queues"},
	Memory:   {"bytes of registered memory", syscall.ENOMEM, "deregister some"},
	Holes:    {"bytes of registered memory never touched", syscall.ENOMEM, "write to memory before registering it"},
	Tools:    {"shares of tools (a trace takes 16)", syscall.EBUSY, "end some of them"},

	// The errnos of the kernel's rdma control group.
	Devices:          {"open devices", syscall.EAGAIN, "close some, or have the tenant's quota raised"},
	QueuePairs:       {"queue pairs", syscall.EAGAIN, "destroy some, or have the tenant's quota raised"},
	CompletionQueues: {"completion queues", syscall.EAGAIN, "destroy some, or have the tenant's quota raised"},
	Connections:      {"connections of rdma_cm", syscall.EAGAIN, "end some, or have the tenant's quota raised"},
	Requests:         {"requests for connections a second", syscall.EAGAIN, "ask again later, or have the tenant's quota raised"},
}

func (k Kind) String() string {
	if k >= kinds {
		return fmt.Sprintf("kind %d", uint8(k))
	}
	return kindText[k].name
}

// An Error is a limit that was reached. The program gets its errno.
type Error struct {
	Kind               Kind
	Whose              string
	Tenant             string // the tenant of the quota; "": none
	Limit, Used, Asked uint64
	Tight              bool // the limit is small because memory is short
}

// Error returns a text that fits into a Welcome (191 bytes).
func (e *Error) Error() string {
	if e.Tight {
		return fmt.Sprintf("%s may have %d %s while memory is short, and has %d: try again later", e.Whose, e.Limit, e.Kind, e.Used)
	}
	return fmt.Sprintf("%s may have %d %s and has %d: %s", e.Whose, e.Limit, e.Kind, e.Used, kindText[e.Kind].do)
}

// Unwrap returns the errno.
func (e *Error) Unwrap() error { return kindText[e.Kind].errno }
