package nic

import "vrdma.dev/vrdma/internal/budget"

// The charges for objects to their user's account. State is the heap memory of one object,
// measured with many of them and rounded up. It is about twice the object's size, because the
// garbage collector lets the heap grow to twice the live memory. Rings are charged separately,
// by their size (Arena.alloc).
var (
	pdBill  = budget.Bill{budget.State: 256}
	cqBill  = budget.Bill{budget.State: 1 << 10, budget.CompletionQueues: 1}
	qpBill  = budget.Bill{budget.State: 10 << 10, budget.QueuePairs: 1}
	srqBill = budget.Bill{budget.State: 1 << 10}
	mrBill  = budget.Bill{budget.State: 1 << 10}
	mwBill  = budget.Bill{budget.State: 1 << 10}
	ahBill  = budget.Bill{budget.State: 512}
	// A queue pair's place in a multicast group.
	memberBill = budget.Bill{budget.State: 512}
	// A multicast group of the NIC, charged to one of its members: the daemon joins it on a
	// socket.
	groupBill = budget.Bill{budget.State: 1 << 10, budget.Files: 1}
	// A channel is a socket pair, of which the daemon keeps both ends.
	channelBill = budget.Bill{budget.State: 2 << 10, budget.Files: 2}
	// An event that its reader has not read yet.
	eventBill = budget.Bill{budget.State: 64}
)

// deviceBill is the charge for an open device. GET_CONTEXT charges it, as in the kernel, because that
// command can return EAGAIN to the program. libibverbs loses the errno of open().
var deviceBill = budget.Bill{budget.Devices: 1}

// SessionBill is what an open device takes before it has any object: the arena, the
// doorbell, the event queue of the device, the connection's goroutine. A mapping is charged
// for every gibibyte of the arena, as for registered memory: address space has an end too.
var SessionBill = budget.Bill{budget.State: 64 << 10, budget.Files: 4, budget.Mappings: arenaSize >> 30}
