package engine

import (
	"os"
	"runtime"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"vrdma.dev/vrdma/internal/ib"
)

// contend makes a loop yield for d every period until it moves or the time is over, and returns when it moved.
func contend(c *contention, now *ib.Time, d, period, until ib.Time) bool {
	for *now < until {
		left := *now + period - d
		*now += period
		if c.back(left, *now) {
			return true
		}
	}
	return false
}

// TestContention: a loop that does not get its processor back moves to another; one that does stays.
func TestContention(t *testing.T) {
	const ms, us = ib.Time(1_000_000), ib.Time(1_000)
	for _, c := range []struct {
		name      string
		d, period ib.Time
		moves     bool
	}{
		{"alone", 300, 2 * us, false},
		{"beside a program that polls", 3 * us, 4 * us, false},
		{"beside a loop that works half of the time", 100 * us, 200 * us, true},
		{"beside one that does not give way", 3 * ms, 4 * ms, true},
		{"beside one that works now and then", 100 * us, 2 * ms, false},
	} {
		now := ib.Time(1)
		var w contention
		if got := contend(&w, &now, c.d, c.period, 100*ms); got != c.moves {
			t.Errorf("%s: moved %v, want %v", c.name, got, c.moves)
		}
	}
}

// TestContentionApart: two loops do not move at the same time for ever, however coarse the clock.
func TestContentionApart(t *testing.T) {
	const ms, us = ib.Time(1_000_000), ib.Time(1_000)
	seen := map[ib.Time]bool{}
	for i := range ib.Time(4) {
		var w contention
		now := 1 + i*us // a clock that counts in steps of a microsecond
		start := now
		if !contend(&w, &now, 100*us, 200*us, 100*ms) {
			t.Fatal("never moved")
		}
		seen[now-start] = true
	}
	if len(seen) != 4 {
		t.Errorf("loops that start a microsecond apart wait for %d different times, want 4", len(seen))
	}
}

// TestContentionPatience: moves that do not help become rare, and a helpful one resets that.
func TestContentionPatience(t *testing.T) {
	const ms, us = ib.Time(1_000_000), ib.Time(1_000)
	var w contention
	now := ib.Time(1)
	moves, last, longest := 0, now, ib.Time(0)
	for now < 10_000*ms {
		if contend(&w, &now, 100*us, 200*us, 10_000*ms) {
			moves++
			longest, last = max(longest, now-last), now
		}
	}
	if moves < 8 || moves > 40 || longest < 400*ms {
		t.Errorf("%d moves in 10 s, with %d ms between them at most; want some, ever more rarely", moves, longest/ms)
	}
	if contend(&w, &now, 300, 2*us, now+2*ms) {
		t.Error("moved although alone")
	}
	before := now
	if !contend(&w, &now, 100*us, 200*us, now+100*ms) || now-before > 10*ms {
		t.Errorf("the first move in new contention came after %d ms", (now-before)/ms)
	}
}

// allowed is the processors that this thread may use, as the kernel shows them: also those
// that are not there yet.
func allowed(t *testing.T) string {
	t.Helper()
	b, err := os.ReadFile("/proc/thread-self/status")
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(b)) {
		if strings.HasPrefix(line, "Cpus_allowed:") {
			return line
		}
	}
	t.Fatal("/proc/thread-self/status has no Cpus_allowed")
	return ""
}

// TestLeave: the thread moves to another processor and back, and may still use all of its processors.
func TestLeave(t *testing.T) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	before := allowed(t)
	if n := testing.AllocsPerRun(10, func() { goTo(leave()) }); n != 0 {
		t.Errorf("%v allocations", n)
	}
	if after := allowed(t); after != before {
		t.Errorf("the thread may use %s before: %s", after, before)
	}
}

// TestRelease: a thread that is restricted to some processors stays restricted.
func TestRelease(t *testing.T) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	var all, one, got unix.CPUSet
	if err := unix.SchedGetaffinity(0, &all); err != nil {
		t.Fatal(err)
	}
	defer release(&all)
	for cpu := 0; one.Count() == 0; cpu++ {
		if all.IsSet(cpu) {
			one.Set(cpu)
		}
	}
	release(&one)
	if err := unix.SchedGetaffinity(0, &got); err != nil || got != one {
		t.Errorf("%d processors, %v; want one", got.Count(), err)
	}
	release(&all)
	if err := unix.SchedGetaffinity(0, &got); err != nil || got != all {
		t.Errorf("%d processors, %v; want %d", got.Count(), err, all.Count())
	}
}
