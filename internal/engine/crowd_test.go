package engine

import (
	"runtime"
	"testing"

	"golang.org/x/sys/unix"

	"vrdma/internal/transport"
)

// crowdDrive has a loop yield for d every period until it moves or the time is up, and
// returns when it moved.
func crowdDrive(c *crowd, now *transport.Time, d, period, until transport.Time) bool {
	for *now < until {
		left := *now + period - d
		*now += period
		if c.back(left, *now) {
			return true
		}
	}
	return false
}

// TestCrowd: who does not get its processor back moves, and who does stays.
func TestCrowd(t *testing.T) {
	const ms, us = transport.Time(1_000_000), transport.Time(1_000)
	for _, c := range []struct {
		name      string
		d, period transport.Time
		moves     bool
	}{
		{"alone", 300, 2 * us, false},
		{"beside a program that polls", 3 * us, 4 * us, false},
		{"beside a loop that works half of the time", 100 * us, 200 * us, true},
		{"beside one that does not give way", 3 * ms, 4 * ms, true},
		{"beside one that works now and then", 100 * us, 2 * ms, false},
	} {
		now := transport.Time(1)
		var w crowd
		if got := crowdDrive(&w, &now, c.d, c.period, 100*ms); got != c.moves {
			t.Errorf("%s: moved %v, want %v", c.name, got, c.moves)
		}
	}
}

// TestCrowdPatience: moves that do not help become rare, and one that does is forgotten.
func TestCrowdPatience(t *testing.T) {
	const ms, us = transport.Time(1_000_000), transport.Time(1_000)
	var w crowd
	now := transport.Time(1)
	moves, last, longest := 0, now, transport.Time(0)
	for now < 10_000*ms {
		if crowdDrive(&w, &now, 100*us, 200*us, 10_000*ms) {
			moves++
			longest, last = max(longest, now-last), now
		}
	}
	if moves < 8 || moves > 40 || longest < 400*ms {
		t.Errorf("%d moves in 10 s, with %d ms between them at most; want some, ever more rarely", moves, longest/ms)
	}
	if crowdDrive(&w, &now, 300, 2*us, now+2*ms) {
		t.Error("moved although alone")
	}
	before := now
	if !crowdDrive(&w, &now, 100*us, 200*us, now+100*ms) || now-before > 10*ms {
		t.Errorf("the first move in a new crowd came after %d ms", (now-before)/ms)
	}
}

// TestMove: another processor, and free to use every one that it could before.
func TestMove(t *testing.T) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	var before, after unix.CPUSet
	if err := unix.SchedGetaffinity(0, &before); err != nil {
		t.Fatal(err)
	}
	for range 10 {
		move()
	}
	if err := unix.SchedGetaffinity(0, &after); err != nil {
		t.Fatal(err)
	}
	if before != after {
		t.Errorf("the thread may use %d processors, %d before", after.Count(), before.Count())
	}
}
