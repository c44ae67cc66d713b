package engine

import (
	"unsafe"

	"golang.org/x/sys/unix"
)

// epollWait is epoll_pwait2, which takes nanoseconds: retry timers are shorter than
// a millisecond. timeout < 0 waits for ever.
func epollWait(epfd int, events []unix.EpollEvent, timeout int64) (int, error) {
	var t unix.Timespec
	var ts *unix.Timespec
	if timeout >= 0 {
		t = unix.NsecToTimespec(timeout)
		ts = &t
	}
	n, _, e := unix.Syscall6(unix.SYS_EPOLL_PWAIT2, uintptr(epfd), uintptr(unsafe.Pointer(&events[0])), uintptr(len(events)),
		uintptr(unsafe.Pointer(ts)), 0, 0)
	switch e {
	case 0:
		return int(n), nil
	case unix.ENOSYS:
		// Before Linux 5.11: milliseconds, rounded up so as not to spin.
		ms := -1
		if timeout >= 0 {
			ms = int((timeout + 999_999) / 1_000_000)
		}
		return unix.EpollWait(epfd, events, ms)
	}
	return 0, e
}

// epollNap is epollWait for at most a moment, without the Go scheduler's knowledge.
func epollNap(epfd int, events []unix.EpollEvent, timeout int64) (int, error) {
	t := unix.NsecToTimespec(timeout)
	n, _, e := unix.RawSyscall6(unix.SYS_EPOLL_PWAIT2, uintptr(epfd), uintptr(unsafe.Pointer(&events[0])), uintptr(len(events)),
		uintptr(unsafe.Pointer(&t)), 0, 0)
	switch e {
	case 0:
		return int(n), nil
	case unix.ENOSYS:
		return unix.EpollWait(epfd, events, 0)
	}
	return 0, nil // interrupted: nothing came
}

// yield lets another thread run. On a machine with fewer cores than polling threads,
// whoever polls without yielding holds up the one it is waiting for.
func yield() { unix.RawSyscall(unix.SYS_SCHED_YIELD, 0, 0, 0) }

// doze sleeps for so many nanoseconds, without the Go scheduler's knowledge.
func doze(ns int64) {
	t := unix.NsecToTimespec(ns)
	unix.RawSyscall(unix.SYS_NANOSLEEP, uintptr(unsafe.Pointer(&t)), 0, 0)
}

// setSlice says how long the calling thread wants to have a processor at a time, and how late it may be woken, in nanoseconds; 0: as others.
// A kernel that knows no slices (before Linux 6.12) ignores it, and one that forbids it leaves the thread as it is.
func setSlice(ns uint64, slack uintptr) {
	if a, err := unix.SchedGetAttr(0, 0); err == nil {
		a.Runtime = ns
		unix.SchedSetAttr(0, a, 0)
	}
	unix.Prctl(unix.PR_SET_TIMERSLACK, slack, 0, 0, 0)
}

// currentCPU is the number of the CPU that the calling thread runs on.
func currentCPU() (cpu uint32) {
	unix.RawSyscall(unix.SYS_GETCPU, uintptr(unsafe.Pointer(&cpu)), 0, 0)
	return cpu
}

// switches is how often the calling thread has lost its processor: to others that the kernel ran
// instead, or because it yielded.
func switches() int64 {
	var r unix.Rusage
	if unix.Getrusage(unix.RUSAGE_THREAD, &r) != nil {
		return 0
	}
	return r.Nivcsw
}

// leave takes the calling thread to another processor, if it may use more than one, and leaves
// it free to be taken elsewhere. It returns the one that it was on, or -1 if it stays.
func leave() int {
	var cpu uint32
	if _, _, e := unix.RawSyscall(unix.SYS_GETCPU, uintptr(unsafe.Pointer(&cpu)), 0, 0); e != 0 {
		return -1
	}
	var all unix.CPUSet
	if unix.SchedGetaffinity(0, &all) != nil || all.Count() < 2 {
		return -1
	}
	others := all
	others.Clear(int(cpu))
	if unix.SchedSetaffinity(0, &others) != nil {
		return -1
	}
	release(&all)
	return int(cpu)
}

// goTo takes the calling thread to a processor, if it may use that, and leaves it free to be
// taken elsewhere.
func goTo(cpu int) {
	var all, one unix.CPUSet
	if cpu < 0 || unix.SchedGetaffinity(0, &all) != nil || !all.IsSet(cpu) || all.Count() < 2 {
		return
	}
	one.Set(cpu)
	if unix.SchedSetaffinity(0, &one) == nil {
		release(&all)
	}
}

// release lets the calling thread use these processors. If it might use any that its control
// group has, and these are all, it is not held to them: more may be added.
func release(all *unix.CPUSet) {
	var every, got unix.CPUSet
	every.Fill()
	if unix.SchedSetaffinity(0, &every) == nil && unix.SchedGetaffinity(0, &got) == nil && got == *all {
		return
	}
	// Should it fail, a processor too many or too few: the thread runs.
	_ = unix.SchedSetaffinity(0, all)
}
