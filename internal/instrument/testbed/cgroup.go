package testbed

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// Cgroups are control groups of the cpu controller, made for one measurement.
type Cgroups struct {
	parent string
	prefix string
	made   []string
}

// cgroupsRemedy is what to do when there are none.
const cgroupsRemedy = "run this as root where the cpu controller can be used, or in a control group of your own " +
	"(systemd-run --user --scope -p Delegate=yes)"

// namePrefix is what names of groups, and of containers, begin with; the process id of who made it follows.
const namePrefix = "vrdma-bench-"

// NewCgroups finds out where groups can be made.
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
	g := &Cgroups{parent: dir, prefix: fmt.Sprintf("%s%d-", namePrefix, os.Getpid())}
	g.sweep()
	return g, nil
}

// cpuController is our control group of the cpu controller: a directory, and whether it is
// one of version 2. The arguments are what /proc/self/mountinfo and /proc/self/cgroup say.
func cpuController(mountinfo, ours string) (dir string, unified bool, err error) {
	return controller(mountinfo, ours, "cpu")
}

// controller is the same of any controller; in version 2 it is that of cpu.
func controller(mountinfo, ours, name string) (dir string, unified bool, err error) {
	var old, new string // paths in the hierarchies
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
		below, err := filepath.Rel(mount[3], path) // what is mounted may be a part
		if err != nil || strings.HasPrefix(below, "..") {
			continue
		}
		return filepath.Join(mount[4], below), kind == "cgroup2", nil
	}
	return "", false, fmt.Errorf("the %s controller is not mounted here", name)
}

// delegating is the control group of version 2, ours or the one above, whose children have
// a share of the processors. One with processes in it gives its children none, unless it is
// the root.
func delegating(dir string) (string, error) {
	for _, d := range []string{dir, filepath.Dir(dir)} {
		text, err := os.ReadFile(filepath.Join(d, "cgroup.subtree_control"))
		if err == nil && slices.Contains(strings.Fields(string(text)), "cpu") {
			return d, nil
		}
	}
	return "", fmt.Errorf("neither %s nor the group above gives the cpu controller to its children (cgroup.subtree_control)", dir)
}

// sweep removes what a killed run left.
func (g *Cgroups) sweep() {
	left, _ := filepath.Glob(filepath.Join(g.parent, namePrefix+"*"))
	for _, dir := range left {
		if abandoned(filepath.Base(dir)) {
			os.Remove(dir) // if it cannot be, somebody is in there
		}
	}
}

// abandoned reports whether who made something of this name, which is groupPrefix, a process id and more, has ended.
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
	if errors.Is(err, os.ErrExist) { // it is of ours, and could not be removed before
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

// AddIdle makes a group whose tasks run when nobody else wants the processor.
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

// EnterCgroup is what to run a command with to be in the group of that directory, and in a session
// of its own.
func EnterCgroup(dir string) []string {
	return []string{ownSession, "sh", "-c", `echo $$ >"$0" && exec "$@"`, filepath.Join(dir, "cgroup.procs")}
}

// removeCgroup takes a group away. Processes that were in it may just be ending.
func removeCgroup(dir string) error {
	err := os.Remove(dir)
	for end := time.Now().Add(5 * time.Second); errors.Is(err, syscall.EBUSY) && time.Now().Before(end); {
		time.Sleep(10 * time.Millisecond)
		err = os.Remove(dir)
	}
	return err
}

// Remove takes the groups away.
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
