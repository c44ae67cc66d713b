package filecopy

import (
	"os"
	"runtime"
	"strconv"
	"testing"

	"golang.org/x/sys/unix"
)

// TestSeats: a process with one session is pinned if it has two processors, else not.
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
	t.Setenv("GOMAXPROCS", "")
	move(&all, &two)
	defer move(&two, &all)
	before := runtime.GOMAXPROCS(2)
	defer runtime.GOMAXPROCS(before)
	is := func(what string, want unix.CPUSet, procs int) {
		t.Helper()
		if n := runtime.GOMAXPROCS(0); n != procs {
			t.Errorf("%s: %d goroutines run at a time, want %d", what, n, procs)
		}
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
	rise := p.sit(true, true, true)
	is("a sender", first, 1)
	again := p.sit(false, true, true)
	is("with another session", two, 2)
	rise()
	rise()
	is("with that one alone, which has begun without a seat", two, 2)
	again()
	rise = p.sit(false, true, true)
	is("a receiver", last, 1)
	rise()
	is("nobody", two, 2)
	rise = p.sit(true, false, true)
	is("a sender to another machine", two, 1)
	rise()
	is("nobody again", two, 2)
	rise = p.sit(true, false, false)
	is("a sender to another machine over TCP", two, 2)
	rise()
	t.Setenv("GOMAXPROCS", "2")
	rise = p.sit(true, true, true)
	is("a sender that was told how many", first, 2)
	rise()
	is("nobody at last", two, 2)
}
