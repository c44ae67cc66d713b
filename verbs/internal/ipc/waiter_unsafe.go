package ipc

import (
	"sync/atomic"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// yield lets another thread run. It bypasses the Go runtime, which would move other goroutines to another
// thread meanwhile; that costs more than the yield.
func yield() { unix.RawSyscall(unix.SYS_SCHED_YIELD, 0, 0, 0) }

// processor returns the processor that this thread runs on.
func processor() uint32 {
	var cpu uint32
	unix.RawSyscall(unix.SYS_GETCPU, uintptr(unsafe.Pointer(&cpu)), 0, 0)
	return cpu
}

// Operations of futex(2).
const (
	futexOpWait = 0
	futexOpWake = 1
)

// futexWait sleeps while the word has the value; woken is true if a futexWake ended the sleep.
func futexWait(word *atomic.Uint32, value uint32, most time.Duration) (woken bool) {
	t := unix.NsecToTimespec(most.Nanoseconds())
	_, _, errno := unix.Syscall6(unix.SYS_FUTEX, uintptr(unsafe.Pointer(word)), futexOpWait, uintptr(value), uintptr(unsafe.Pointer(&t)), 0, 0)
	return errno == 0
}

// futexWake wakes all threads that sleep on a word.
func futexWake(word *atomic.Uint32) {
	unix.RawSyscall(unix.SYS_FUTEX, uintptr(unsafe.Pointer(word)), futexOpWake, 1<<30)
}
