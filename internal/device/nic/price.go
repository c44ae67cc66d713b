package nic

import "vrdma.dev/vrdma/internal/budget"

// What an object takes of the daemon, for its user's account. State is the heap that it
// costs, measured with many of them and rounded up: about twice its size, because the
// garbage collector lets the heap grow to twice of what lives. Rings are charged apart,
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
	// A multicast group of the NIC, for whoever is its first member: the daemon joins it
	// on a socket.
	groupBill = budget.Bill{budget.State: 1 << 10, budget.Files: 1}
	// A channel is a socket pair, of which the daemon keeps both ends.
	channelBill = budget.Bill{budget.State: 2 << 10, budget.Files: 2}
	// An event that its reader has left to wait.
	eventBill = budget.Bill{budget.State: 64}
)

// An open device counts from when it is asked for its context, as in the kernel: a program is told
// EAGAIN by that command, and not by open(), whose errno libibverbs does not keep.
var deviceBill = budget.Bill{budget.Devices: 1}

// SessionBill is what an open device takes before it has any object: the arena, the
// doorbell, the event queue of the device, the connection's goroutine. A mapping is charged
// for every gibibyte of the arena, as for registered memory: address space has an end too.
var SessionBill = budget.Bill{budget.State: 64 << 10, budget.Files: 4, budget.Mappings: arenaSize >> 30}
