package harness

import (
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"vrdma.dev/vrdma/internal/client/protocol"
)

// Footprint is what a daemon holds, as the kernel sees it.
type Footprint struct {
	FDs   int // open descriptors
	Memfd int // mappings of memfds: arenas, registered memory
}

func (f Footprint) String() string {
	return fmt.Sprintf("%d descriptors, %d memfd mappings", f.FDs, f.Memfd)
}

// Footprint of the daemon now.
func (d *Daemon) Footprint(t testing.TB) Footprint {
	t.Helper()
	fds, err := os.ReadDir(fmt.Sprintf("/proc/%d/fd", d.PID()))
	if err != nil {
		t.Fatalf("the daemon is gone: %v\n%s", err, Tail(d.Process.Output(), 60))
	}
	maps, err := os.ReadFile(fmt.Sprintf("/proc/%d/maps", d.PID()))
	if err != nil {
		t.Fatalf("the daemon is gone: %v\n%s", err, Tail(d.Process.Output(), 60))
	}
	return Footprint{FDs: len(fds), Memfd: strings.Count(string(maps), "/memfd:")}
}

// NoLeaks runs one program to warm the daemon up and records what it holds. When the test ends, the daemon must hold no
// more and have no session. Call it after Start, before the programs.
func (d *Daemon) NoLeaks(t testing.TB) {
	t.Helper()
	d.Run(t, patience, "ibv_devinfo")
	before := d.settle(t, func(Footprint) bool { return true })
	t.Cleanup(func() {
		if d.Process.Ended(0) {
			t.Errorf("the daemon ended during the test\n%s", Tail(d.Process.Output(), 60))
			return
		}
		d.settle(t, func(now Footprint) bool { return now.FDs <= before.FDs && now.Memfd <= before.Memfd },
			fmt.Sprintf("before the test it held %v", before))
	})
}

// settle waits until the daemon has no session and please returns true for the footprint.
func (d *Daemon) settle(t testing.TB, please func(Footprint) bool, notes ...string) Footprint {
	t.Helper()
	var now Footprint
	var s *protocol.Status
	ok := Poll(patience, func() bool {
		now, s = d.Footprint(t), d.Status(t)
		return len(s.Sessions) == 0 && please(now)
	})
	if !ok {
		t.Errorf("the daemon leaks: %v after the last program ended it has %d sessions %v, %v; %v\n%s",
			patience, len(s.Sessions), s.Sessions, now, notes, d.holdings())
	}
	return now
}

// holdings lists the daemon's descriptors and memfd mappings, to see what leaked.
func (d *Daemon) holdings() string {
	var b strings.Builder
	dir := fmt.Sprintf("/proc/%d/fd", d.PID())
	fds, _ := os.ReadDir(dir)
	for _, fd := range fds {
		to, _ := os.Readlink(dir + "/" + fd.Name())
		fmt.Fprintf(&b, "fd %s -> %s\n", fd.Name(), to)
	}
	maps, _ := os.ReadFile(fmt.Sprintf("/proc/%d/maps", d.PID()))
	for line := range strings.Lines(string(maps)) {
		if strings.Contains(line, "/memfd:") {
			b.WriteString(line)
		}
	}
	return b.String()
}

// Gone waits until the daemon has no session of pid, which has ended, and returns how long that took.
func (d *Daemon) Gone(t testing.TB, pid int) time.Duration {
	t.Helper()
	start := time.Now()
	ok := Poll(patience, func() bool {
		for _, s := range d.Status(t).Sessions {
			if s.Pid == pid {
				return false
			}
		}
		return true
	})
	if !ok {
		t.Errorf("session of pid %d is still there %v after its end", pid, patience)
	}
	return time.Since(start)
}
