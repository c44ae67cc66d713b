package budget

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// Memory pressure. The limits are shares of the memory that the daemon may have, but others use that memory, too. The kernel
// reports when tasks of a control group, or of the machine, wait for memory (PSI). While they do, users other than the owner may
// hold only a fraction of their limits: programs with little continue, and nobody can grow until the OOM killer ends the daemon.

const (
	// trigger asks for an event when some task has waited for memory for 0.2 s within 2 s. The kernel accepts windows that are
	// multiples of 2 s from any user.
	trigger = "some 200000 2000000"
	// calmAfter is the time without an event after which the pressure is over. Events repeat every window while it lasts.
	calmAfter = 10 * time.Second
	// tightShare divides the limits of users under pressure.
	tightShare = 8
)

// tightKinds are the kinds for which the daemon itself has pages.
var tightKinds = [kinds]bool{State: true, Rings: true, Holes: true}

// SetTight makes the limits of users other than the owner small, or normal again. Nothing that they hold is taken away.
func (l *Ledger) SetTight(tight bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.tight = tight
}

// Tight reports whether limits are small because memory is short.
func (l *Ledger) Tight() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.tight
}

// limitOf returns the limit of a kind that is in force. The caller holds the ledger's mu.
func (a *Account) limitOf(k int) uint64 {
	if a.ledger.tight && tightKinds[k] && a.limit == &a.ledger.limits.User {
		return a.limit[k] / tightShare
	}
	return a.limit[k]
}

// PressureFiles returns the files that report memory pressure: of this process's control group, and of the machine. Both may be
// missing. proc is /proc/self.
func PressureFiles(proc string) []string {
	var files []string
	groups, gerr := os.ReadFile(filepath.Join(proc, "cgroup"))
	mounts, merr := os.ReadFile(filepath.Join(proc, "mountinfo"))
	if gerr == nil && merr == nil {
		hierarchies := parseHierarchies(string(mounts))
		for line := range strings.Lines(string(groups)) {
			path, ok := strings.CutPrefix(strings.TrimSpace(line), "0::")
			i := slices.IndexFunc(hierarchies, func(h hierarchy) bool { return h.version2 })
			if ok && i >= 0 {
				files = append(files, filepath.Join(hierarchies[i].at, hierarchies[i].below(path), "memory.pressure"))
			}
		}
	}
	return append(files, "/proc/pressure/memory")
}

// A PressureWatch waits for memory pressure.
type PressureWatch struct {
	fd   int
	name string
}

// WatchPressure opens the first of several files that accepts a trigger.
func WatchPressure(files []string) (*PressureWatch, error) {
	var all error
	for _, name := range files {
		fd, err := unix.Open(name, unix.O_RDWR|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
		if err != nil {
			all = errors.Join(all, &os.PathError{Op: "open", Path: name, Err: err})
			continue
		}
		if _, err := unix.Write(fd, append([]byte(trigger), 0)); err != nil {
			unix.Close(fd)
			all = errors.Join(all, &os.PathError{Op: "write a trigger to", Path: name, Err: err})
			continue
		}
		return &PressureWatch{fd, name}, nil
	}
	return nil, all
}

// Name returns the file.
func (w *PressureWatch) Name() string { return w.name }

// Run calls changed when pressure begins and when it is over, until ctx ends or the file is gone. It closes w.
func (w *PressureWatch) Run(ctx context.Context, changed func(under bool)) error {
	defer unix.Close(w.fd)
	wake, err := unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK)
	if err != nil {
		return err
	}
	ended := make(chan struct{})
	stop := context.AfterFunc(ctx, func() {
		defer close(ended)
		unix.Write(wake, []byte{1, 0, 0, 0, 0, 0, 0, 0})
	})
	defer func() {
		if !stop() {
			<-ended
		}
		unix.Close(wake)
	}()
	var e episode
	list := []unix.PollFd{{Fd: int32(w.fd), Events: unix.POLLPRI}, {Fd: int32(wake), Events: unix.POLLIN}}
	for {
		n, err := unix.Poll(list, e.timeout())
		switch {
		case errors.Is(err, unix.EINTR):
			continue
		case err != nil:
			return err
		case list[1].Revents != 0:
			return nil
		case list[0].Revents&(unix.POLLERR|unix.POLLHUP|unix.POLLNVAL) != 0:
			if e.under {
				changed(false)
			}
			return fmt.Errorf("%s is gone", w.name)
		}
		if e.next(n > 0) {
			changed(e.under)
		}
	}
}

// An episode is a time of pressure.
type episode struct {
	under bool
}

// timeout returns how long to wait for the next event, in milliseconds.
func (e *episode) timeout() int {
	if e.under {
		return int(calmAfter / time.Millisecond)
	}
	return -1
}

// next takes an event, or the end of the timeout, and reports whether the pressure has begun or ended.
func (e *episode) next(event bool) (changed bool) {
	changed = e.under != event
	e.under = event
	return changed
}
