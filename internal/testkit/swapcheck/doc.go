// Package swapcheck checks the protocol by which the shim replaces the page under a buffer:
// ibv_reg_mr puts a page of the process's memfd in the place of a private page, ibv_dereg_mr
// puts a private page back. It is a model, in tests only: actors that take one step at a time
// over one page, and a search through every order of their steps.
//
//	registration                           deregistration
//	halt    all other threads              halt    all other threads
//	look    for an io_uring: foreign       look    for an io_uring: stay shared
//	move    the page to a scratch area     move    the mapping away: a hole
//	        a pinned page: foreign         copy    memfd page to a new private page
//	copy    scratch area to memfd page     map     the private page
//	map     the memfd page                 punch   the memfd page
//	resume                                 resume
//
// Actors (machine_test.go): a thread of the program, which stores, makes system calls, and
// reads with O_DIRECT; an io_uring with a pinned buffer, and one with a pending operation that
// resolves its address late; another process with process_vm_writev and process_vm_readv. A
// halt stops threads between two operations. It does not stop an io_uring or another process.
//
// Every write that succeeds sets a bit of its own. A write is lost if the page at the address
// lacks the bit in the end, or if a later read of the same actor does not see it. No operation of
// the program may fail. Another process may get EFAULT (docs list it among the exceptions).
//
// UFFDIO_MOVE refuses a pinned page and unmaps others in one step, so the pin check and the move
// have nothing between them. Without it, mremap moves the mapping first. No actor but the
// registering thread knows the new address, so no pin can follow, and then bit 56 of pagemap is
// asked. "Check, then move" loses the pin in between (TestMistakes).
//
// A page that another region covers as foreign memory is not replaced. The daemon copies there with
// /proc/PID/mem, which holds a plain reference that UFFDIO_MOVE does not see, and meets the hole of
// mremap (TestCovered).
//
// One loss remains (TestKnownLoss). Another process pins the memfd page inside one
// process_vm_writev, the deregistration runs from its move to its end meanwhile, and only then
// the other process copies its bytes. No interface tells whether a memfd page is pinned.
//
// The package imports nothing of vrdma and is imported by nothing. The code is shim/memory.c and
// shim/reclaim.c; the same races with real programs are in test/memory.
package swapcheck
