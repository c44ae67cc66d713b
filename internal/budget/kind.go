package budget

import (
	"fmt"
	"syscall"
)

// A Kind is something that there is only so much of.
type Kind uint8

const (
	// Files are descriptors of the daemon: RLIMIT_NOFILE.
	Files Kind = iota
	// Mappings of the daemon's address space, of a gibibyte each: vm.max_map_count.
	Mappings
	// State is the daemon's own memory, in bytes: what objects and conversations take.
	State
	// Rings are bytes of queues in shared memory.
	Rings
	// Memory is registered memory, in bytes.
	Memory
	// Holes are registered bytes whose pages the program has not made: the first
	// touch of the daemon makes them, and the kernel charges them to the daemon.
	Holes
	// Tools are conversations of status, trace and the like, which `vrdma run` has too.
	// A trace counts for many: it has a long queue, and is fed by every command.
	Tools
	// Devices, QueuePairs, CompletionQueues and Connections are how many there are. Only
	// tenants have limits of them, 0 is none.
	Devices
	QueuePairs
	CompletionQueues
	Connections
	// Requests are those for connections, a second. Nobody holds any: see Pace.
	Requests

	kinds

	// counted is the first kind of which a limit of 0 is none.
	counted = int(Devices)
)

// kindText says what a kind is called, what a program is told when there is no more,
// and what to do then.
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

	// As the kernel's rdma control group says it.
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

// An Error says which limit was met. Its errno is what a program gets.
type Error struct {
	Kind               Kind
	Whose              string
	Tenant             string // whose quota it is; "": it is no tenant's
	Limit, Used, Asked uint64
}

// Error fits into a Welcome (191 bytes).
func (e *Error) Error() string {
	return fmt.Sprintf("%s may have %d %s and has %d: %s", e.Whose, e.Limit, e.Kind, e.Used, kindText[e.Kind].do)
}

// Unwrap returns the errno.
func (e *Error) Unwrap() error { return kindText[e.Kind].errno }
