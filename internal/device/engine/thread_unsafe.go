package engine

import (
	"unsafe"

	"golang.org/x/sys/unix"
)

// epollWait is epoll_pwait2, which takes nanoseconds: retry timers are shorter than a millisecond. A
// negative timeout waits for ever.
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

// epollNap is epollWait for a short time. It does not tell the Go scheduler.
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

// readFile reads the beginning of the file at path, which ends with 0. It returns the number of bytes, or
// -1. It allocates nothing, so the kernel takes the path as it is.
func readFile(path *[40]byte, text *[512]byte) int {
	fd, _, e := unix.Syscall6(unix.SYS_OPENAT, ^uintptr(99), uintptr(unsafe.Pointer(path)), unix.O_RDONLY|unix.O_CLOEXEC, 0, 0, 0) // AT_FDCWD is -100
	if e != 0 {
		return -1
	}
	n, _, e := unix.Syscall(unix.SYS_READ, fd, uintptr(unsafe.Pointer(text)), uintptr(len(text)))
	unix.Close(int(fd))
	if e != 0 {
		return -1
	}
	return int(n)
}

// yield lets another thread run. On a machine with fewer CPUs than polling threads, a thread that
// polls without yielding delays the thread that it waits for.
func yield() { unix.RawSyscall(unix.SYS_SCHED_YIELD, 0, 0, 0) }

// doze sleeps for ns nanoseconds. It does not tell the Go scheduler.
func doze(ns int64) {
	t := unix.NsecToTimespec(ns)
	unix.RawSyscall(unix.SYS_NANOSLEEP, uintptr(unsafe.Pointer(&t)), 0, 0)
}

// setSlice sets the time slice and the timer slack of the calling thread, in nanoseconds; 0: the
// default. Kernels before Linux 6.12 ignore the slice. If the kernel forbids it, the thread stays as it
// is.
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

// switches is how often the calling thread has lost its CPU: the kernel preempted it, or it yielded.
func switches() int64 {
	var r unix.Rusage
	if unix.Getrusage(unix.RUSAGE_THREAD, &r) != nil {
		return 0
	}
	return r.Nivcsw
}

// leave moves the calling thread to another CPU, if it may use more than one. The kernel may move it
// again later. It returns the former CPU, or -1 if the thread stays.
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

// goTo moves the calling thread to a CPU, if it may use that. The kernel may move it again later.
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

// release allows the calling thread to use these CPUs. If they are all CPUs of its control group, the
// thread gets no mask of its own, so that it can use CPUs that are added later.
func release(all *unix.CPUSet) {
	var every, got unix.CPUSet
	every.Fill()
	if unix.SchedSetaffinity(0, &every) == nil && unix.SchedGetaffinity(0, &got) == nil && got == *all {
		return
	}
	// After an error the thread has a CPU too many or too few, but runs.
	_ = unix.SchedSetaffinity(0, all)
}
