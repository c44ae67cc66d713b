package filecopy

import (
	"os"
	"runtime"
	"strconv"
	"testing"

	"golang.org/x/sys/unix"
)

// TestSeats: a process with one session keeps to a processor if it has two, and otherwise to none.
func TestSeats(t *testing.T) {
	runtime.LockOSThread() // this thread stands for all; it ends with the test
	var all unix.CPUSet
	ok(t, unix.SchedGetaffinity(0, &all))
	if all.Count() < 2 {
		t.Skip("this process has one processor")
	}
	var two, first, last unix.CPUSet
	for cpu := 0; two.Count() < 2; cpu++ {
		if all.IsSet(cpu) {
			two.Set(cpu)
			last = unix.CPUSet{}
			last.Set(cpu)
			if first.Count() == 0 {
				first.Set(cpu)
			}
		}
	}
	move(&all, &two)
	defer move(&two, &all)
	is := func(what string, want unix.CPUSet) {
		t.Helper()
		list, err := os.ReadDir("/proc/self/task")
		ok(t, err)
		for _, e := range list {
			id, _ := strconv.Atoi(e.Name())
			var now unix.CPUSet
			if unix.SchedGetaffinity(id, &now) == nil && now != want {
				t.Errorf("%s: thread %d may use %v, want %v", what, id, now, want)
			}
		}
	}
	var p seats
	rise := p.sit(true)
	is("a sender", first)
	again := p.sit(false)
	is("with another session", two)
	rise()
	rise()
	is("with that one alone, which has begun without a seat", two)
	again()
	rise = p.sit(false)
	is("a receiver", last)
	rise()
	is("nobody", two)
}
