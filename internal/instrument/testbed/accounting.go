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

// Accounting has a control group for each role (client, server, daemon). The kernel charges a group for every process of its role,
// including processes that are never waited for. A nil Accounting measures nothing.
type Accounting struct {
	parent string
	file   string // the file with the processor time
	roles  []string
	role   string // of the next program
}

// newAccounting makes the control groups. It returns nil where this user may not make any.
func newAccounting() *Accounting {
	mounts, err1 := os.ReadFile("/proc/self/mountinfo")
	ours, err2 := os.ReadFile("/proc/self/cgroup")
	if errors.Join(err1, err2) != nil {
		return nil
	}
	// Version 1 accounts in a hierarchy of its own, version 2 in the one that also limits processes.
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

// SetRole sets the role of the programs that are started from now on; "" is no role.
func (a *Accounting) SetRole(role string) {
	if a != nil {
		a.role = role
	}
}

// charge moves a process to the control group of the current role. A process that has already ended is ignored.
func (a *Accounting) charge(pid int) {
	if a != nil && a.role != "" {
		os.WriteFile(filepath.Join(a.parent, a.role, "cgroup.procs"), []byte(strconv.Itoa(pid)), 0)
	}
}

// usage returns the processor time of each role until now.
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

// parseUsage reads cpuacct.usage (nanoseconds) or cpu.stat (the line usage_usec).
func parseUsage(text string) (time.Duration, error) {
	if _, after, found := strings.Cut(text, "usage_usec "); found {
		word, _, _ := strings.Cut(after, "\n")
		n, err := strconv.ParseInt(word, 10, 64)
		return time.Duration(n) * time.Microsecond, err
	}
	n, err := strconv.ParseInt(strings.TrimSpace(text), 10, 64)
	return time.Duration(n), err
}

// close removes the control groups. They are empty when all programs have ended.
func (a *Accounting) close() {
	if a == nil {
		return
	}
	for _, role := range slices.Backward(a.roles) {
		os.Remove(filepath.Join(a.parent, role)) // a group that still has a process stays
	}
	os.Remove(a.parent)
}

// TicksPerSecond is the unit of processor time in /proc.
const TicksPerSecond = 100
