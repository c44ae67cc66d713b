package testbed

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"
)

// Accounting are control groups, one for each role: the kernel charges them with every process that a role's
// programs start, also with one that nobody waits for. A nil account has none.
type Accounting struct {
	parent string
	file   string // that has the processor time
	roles  []string
	role   string // whose the next program is
}

// newAccounting makes them; nil: this machine lets us make none.
func newAccounting() *Accounting {
	mounts, err1 := os.ReadFile("/proc/self/mountinfo")
	ours, err2 := os.ReadFile("/proc/self/cgroup")
	if errors.Join(err1, err2) != nil {
		return nil
	}
	// Version 1 counts in a hierarchy of its own, version 2 where processes are limited, too.
	a := &Accounting{file: "cpuacct.usage"}
	dir, unified, err := controller(string(mounts), string(ours), "cpuacct")
	if err != nil {
		return nil
	}
	if unified {
		a.file = "cpu.stat"
		if dir, err = delegating(dir); err != nil {
			return nil
		}
	}
	a.parent = filepath.Join(dir, fmt.Sprintf("vrdma-account-%d", os.Getpid()))
	for _, role := range []string{"client", "server", "daemon"} {
		if err := os.MkdirAll(filepath.Join(a.parent, role), 0o755); err != nil {
			a.close()
			return nil
		}
		a.roles = append(a.roles, role)
	}
	if unified {
		if err := os.WriteFile(filepath.Join(a.parent, "cgroup.subtree_control"), []byte("+cpu"), 0); err != nil {
			a.close()
			return nil
		}
	}
	return a
}

// SetRole says whose the programs are that are started from now on; "": nobody's.
func (a *Accounting) SetRole(role string) {
	if a != nil {
		a.role = role
	}
}

// charge puts a program into its role's group. One that has ended meanwhile is nobody's.
func (a *Accounting) charge(pid int) {
	if a != nil && a.role != "" {
		os.WriteFile(filepath.Join(a.parent, a.role, "cgroup.procs"), []byte(strconv.Itoa(pid)), 0)
	}
}

// usage is the processor time so far, by role.
func (a *Accounting) usage() map[string]time.Duration {
	if a == nil {
		return nil
	}
	all := make(map[string]time.Duration)
	for _, role := range a.roles {
		text, err := os.ReadFile(filepath.Join(a.parent, role, a.file))
		if err != nil {
			return nil
		}
		if all[role], err = parseUsage(string(text)); err != nil {
			return nil
		}
	}
	return all
}

// parseUsage reads cpuacct.usage, which is nanoseconds, or cpu.stat, which has a line with microseconds.
func parseUsage(text string) (time.Duration, error) {
	if _, after, found := strings.Cut(text, "usage_usec "); found {
		word, _, _ := strings.Cut(after, "\n")
		n, err := strconv.ParseInt(word, 10, 64)
		return time.Duration(n) * time.Microsecond, err
	}
	n, err := strconv.ParseInt(strings.TrimSpace(text), 10, 64)
	return time.Duration(n), err
}

// close removes the groups, which are empty when everybody has ended.
func (a *Accounting) close() {
	if a == nil {
		return
	}
	for _, role := range slices.Backward(a.roles) {
		os.Remove(filepath.Join(a.parent, role)) // somebody may be left in it: then it stays
	}
	os.Remove(a.parent)
}

const TicksPerSecond = 100
