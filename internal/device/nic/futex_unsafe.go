package nic

import (
	"unsafe"

	"golang.org/x/sys/unix"
)

// Wake implements Waker. The futex is not private: the sleeper is another process. The call
// neither blocks nor faults. It fails if the page does not exist, and then no thread sleeps on it.
func (r *ringFile) Wake(offset uint64) {
	const futexWake = 1
	unix.RawSyscall6(unix.SYS_FUTEX, uintptr(unsafe.Pointer(&r.mem[offset])), futexWake, 1, 0, 0, 0)
}
