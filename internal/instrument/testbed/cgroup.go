package testbed

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"time"
)

// Cgroups are control groups of the cpu controller, made for one measurement.
type Cgroups struct {
	parent string
	prefix string
	made   []string
}

// cgroupsRemedy says what to do where no group can be made.
const cgroupsRemedy = "run this as root where the cpu controller can be used, or in a control group of your own " +
	"(systemd-run --user --scope -p Delegate=yes)"

// namePrefix begins the names of control groups and containers. The process id of their owner follows, so that a later run can find
// abandoned ones.
const namePrefix = "vrdma-bench-"

// NewCgroups finds the directory in which groups can be made.
func NewCgroups() (*Cgroups, error) {
	mounts, err1 := os.ReadFile("/proc/self/mountinfo")
	ours, err2 := os.ReadFile("/proc/self/cgroup")
	if err := errors.Join(err1, err2); err != nil {
		return nil, err
	}
	dir, unified, err := cpuController(string(mounts), string(ours))
	if err != nil {
		return nil, fmt.Errorf("no cpu control group: %w; %s", err, cgroupsRemedy)
	}
	if unified {
		if dir, err = delegating(dir); err != nil {
			return nil, fmt.Errorf("no cpu control group: %w; %s", err, cgroupsRemedy)
		}
	}
	g := cgroupsIn(dir)
	g.sweep()
	return g, nil
}

// made counts the Cgroups of this process: bench --against has one for each build, at the same time.
var made atomic.Int64

// cgroupsIn has groups in a directory, with names that no other Cgroups uses.
func cgroupsIn(dir string) *Cgroups {
	return &Cgroups{parent: dir, prefix: fmt.Sprintf("%s%d-%d-", namePrefix, os.Getpid(), made.Add(1))}
}

// cpuController returns the directory of our control group of the cpu controller, and whether it is version 2. The arguments are the
// contents of /proc/self/mountinfo and /proc/self/cgroup.
func cpuController(mountinfo, ours string) (dir string, unified bool, err error) {
	return controller(mountinfo, ours, "cpu")
}

// controller does the same for any controller. Version 2 has one hierarchy for all.
func controller(mountinfo, ours, name string) (dir string, unified bool, err error) {
	var old, new string // paths in the hierarchies of version 1 and 2
	for line := range strings.Lines(ours) {
		fields := strings.SplitN(strings.TrimSuffix(line, "\n"), ":", 3)
		switch {
		case len(fields) != 3:
		case fields[1] == "" && fields[0] == "0":
			new = fields[2]
		case slices.Contains(strings.Split(fields[1], ","), name):
			old = fields[2]
		}
	}
	kind, path := "cgroup", old
	if old == "" {
		kind, path = "cgroup2", new
	}
	for line := range strings.Lines(mountinfo) {
		before, after, _ := strings.Cut(strings.TrimSuffix(line, "\n"), " - ")
		mount, system := strings.Fields(before), strings.Fields(after)
		if len(mount) < 5 || len(system) < 3 || system[0] != kind {
			continue
		}
		if kind == "cgroup" && !slices.Contains(strings.Split(system[2], ","), name) {
			continue
		}
		below, err := filepath.Rel(mount[3], path) // the mount may show a subtree only
		if err != nil || strings.HasPrefix(below, "..") {
			continue
		}
		return filepath.Join(mount[4], below), kind == "cgroup2", nil
	}
	return "", false, fmt.Errorf("the %s controller is not mounted here", name)
}

// delegating returns the control group of version 2 whose children can have the cpu controller: ours or its parent. A group with
// processes cannot delegate, except the root.
func delegating(dir string) (string, error) {
	for _, d := range []string{dir, filepath.Dir(dir)} {
		text, err := os.ReadFile(filepath.Join(d, "cgroup.subtree_control"))
		if err == nil && slices.Contains(strings.Fields(string(text)), "cpu") {
			return d, nil
		}
	}
	return "", fmt.Errorf("neither %s nor the group above gives the cpu controller to its children (cgroup.subtree_control)", dir)
}

// sweep removes the groups of runs that were killed.
func (g *Cgroups) sweep() {
	left, _ := filepath.Glob(filepath.Join(g.parent, namePrefix+"*"))
	for _, dir := range left {
		if abandoned(filepath.Base(dir)) {
			os.Remove(dir) // it fails while a process is in the group
		}
	}
}

// abandoned reports whether the owner of a name has ended. The name is namePrefix, a process id and more.
func abandoned(name string) bool {
	text, ours := strings.CutPrefix(name, namePrefix)
	owner, _, _ := strings.Cut(text, "-")
	pid, err := strconv.Atoi(owner)
	return ours && err == nil && pid > 0 && errors.Is(syscall.Kill(pid, 0), syscall.ESRCH)
}

// Add makes a group and returns its directory.
func (g *Cgroups) Add(name string) (string, error) {
	dir := filepath.Join(g.parent, g.prefix+name)
	err := os.Mkdir(dir, 0o755)
	if errors.Is(err, os.ErrExist) { // ours, from before: it could not be removed
		if err = removeCgroup(dir); err == nil {
			err = os.Mkdir(dir, 0o755)
		}
	}
	if err != nil {
		return "", fmt.Errorf("no cpu control group: %w; %s", err, cgroupsRemedy)
	}
	g.made = append(g.made, dir)
	return dir, nil
}

// AddIdle makes a group whose tasks run only when no other task wants the processor.
func (g *Cgroups) AddIdle(name string) (string, error) {
	dir, err := g.Add(name)
	if err != nil {
		return "", err
	}
	if err := os.WriteFile(filepath.Join(dir, "cpu.idle"), []byte("1"), 0o644); err != nil {
		return "", fmt.Errorf("no control group of lowest priority: %w; it needs Linux 5.15", err)
	}
	return dir, nil
}

// EnterCgroup returns the words before a command that runs it in the group of this directory, in a session of its own.
func EnterCgroup(dir string) []string {
	return []string{ownSession, "sh", "-c", `echo $$ >"$0" && exec "$@"`, filepath.Join(dir, "cgroup.procs")}
}

// removeCgroup removes a group. It retries while processes in the group are ending.
func removeCgroup(dir string) error {
	err := os.Remove(dir)
	for end := time.Now().Add(5 * time.Second); errors.Is(err, syscall.EBUSY) && time.Now().Before(end); {
		time.Sleep(10 * time.Millisecond)
		err = os.Remove(dir)
	}
	return err
}

// Remove removes all groups.
func (g *Cgroups) Remove() error {
	var failed error
	for _, dir := range g.made {
		if err := removeCgroup(dir); err != nil {
			failed = errors.Join(failed, fmt.Errorf("cannot remove a control group: %w", err))
		}
	}
	g.made = nil
	return failed
}
