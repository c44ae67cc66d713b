package main

import (
	"os"
	"runtime"
	"strconv"

	"golang.org/x/sys/unix"
)

// keepApart keeps this process to half of the processors that it may use. It is for a copy whose other side
// is on this machine: both work all the time, one reading and one writing, and wake each other, so the
// kernel puts them on one processor again and again, where they take turns while another is idle. One that
// stays where it is leaves the other processors to the other side, and finds its data in its caches.
func keepApart() {
	var may unix.CPUSet
	if unix.SchedGetaffinity(0, &may) != nil {
		return
	}
	half, n := halfOf(&may, os.Getpid())
	if n == 0 {
		return
	}
	runtime.GOMAXPROCS(min(n, runtime.GOMAXPROCS(0)))
	// A thread has the processors of the one that made it. Twice, for those that were made meanwhile.
	for range 2 {
		tasks, _ := os.ReadDir("/proc/self/task")
		for _, t := range tasks {
			if tid, err := strconv.Atoi(t.Name()); err == nil {
				_ = unix.SchedSetaffinity(tid, &half)
			}
		}
	}
}

// halfOf is the lower or the upper half of the processors, so that two copies are not on the same ones; n: how
// many these are, 0 if there are not two.
func halfOf(may *unix.CPUSet, pid int) (half unix.CPUSet, n int) {
	most := may.Count() / 2
	skip := 0
	if pid%2 == 1 {
		skip = may.Count() - most
	}
	for cpu := 0; n < most; cpu++ {
		if !may.IsSet(cpu) {
			continue
		}
		if skip > 0 {
			skip--
			continue
		}
		half.Set(cpu)
		n++
	}
	return half, n
}
