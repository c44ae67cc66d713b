package ipc

import (
	"sync/atomic"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// yield lets another thread have the processor. The runtime is not told: it would hand our goroutines
// to another thread meanwhile, and that costs more than the yield.
func yield() { unix.RawSyscall(unix.SYS_SCHED_YIELD, 0, 0, 0) }

// processor is the one that we run on.
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

// futexWait sleeps while the word has a value; woken: somebody has ended it.
func futexWait(word *atomic.Uint32, value uint32, most time.Duration) (woken bool) {
	t := unix.NsecToTimespec(most.Nanoseconds())
	_, _, errno := unix.Syscall6(unix.SYS_FUTEX, uintptr(unsafe.Pointer(word)), futexOpWait, uintptr(value), uintptr(unsafe.Pointer(&t)), 0, 0)
	return errno == 0
}

// futexWake wakes all who sleep on a word.
func futexWake(word *atomic.Uint32) {
	unix.RawSyscall(unix.SYS_FUTEX, uintptr(unsafe.Pointer(word)), futexOpWake, 1<<30)
}
