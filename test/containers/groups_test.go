package containers

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"vrdma.dev/vrdma/test/harness"
)

// hierarchies returns the mount points of control groups: one for each controller, or one for all.
func hierarchies() (out []string) {
	const at = "/sys/fs/cgroup"
	if _, err := os.Stat(at + "/cgroup.controllers"); err == nil {
		return []string{at}
	}
	for _, c := range []string{"cpu", "cpuacct", "cpuset", "memory", "devices", "freezer", "blkio", "pids", "systemd", "unified"} {
		if _, err := os.Stat(filepath.Join(at, c, "cgroup.procs")); err == nil {
			out = append(out, filepath.Join(at, c))
		}
	}
	return out
}

// controlGroup creates a control group in each hierarchy, for the engine's groups. The test removes them and what the
// engine left in them, after the host's processes have ended.
func controlGroup(t *testing.T) string {
	t.Helper()
	name := fmt.Sprintf("/vrdma-test-%d-%d", os.Getpid(), time.Now().UnixNano())
	for _, at := range hierarchies() {
		// With one hierarchy for all controllers, groups account for memory only after this.
		if f, err := os.OpenFile(filepath.Join(at, "cgroup.subtree_control"), os.O_WRONLY, 0); err == nil {
			f.WriteString("+memory") // a test that needs it fails later
			f.Close()
		}
		if err := os.Mkdir(at+name, 0o755); err != nil {
			t.Fatalf("a control group: %v (the test needs root)", err)
		}
		if filepath.Base(at) == "cpuset" { // otherwise no process can run in its children
			for _, file := range []string{"cpuset.cpus", "cpuset.mems"} {
				text, err := os.ReadFile(filepath.Join(at, file))
				if err == nil {
					err = os.WriteFile(filepath.Join(at+name, file), text, 0o644)
				}
				if err != nil {
					t.Fatal(err)
				}
			}
		}
		t.Cleanup(func() { removeGroups(t, at+name) })
	}
	return name
}

// buryGroups thaws and removes the control groups of killed tests. Frozen processes do not even die.
func buryGroups() {
	for _, at := range hierarchies() {
		left, _ := filepath.Glob(at + "/vrdma-test-*-*") // the pattern is fine
		for _, top := range left {
			var pid int
			if n, _ := fmt.Sscanf(filepath.Base(top), "vrdma-test-%d-", &pid); n != 1 || unix.Kill(pid, 0) != unix.ESRCH {
				continue
			}
			all := groupsIn(top)
			for _, path := range all {
				// A hierarchy with a freezer has one of these two files.
				for file, thaw := range map[string]string{"freezer.state": "THAWED", "cgroup.freeze": "0"} {
					if f, err := os.OpenFile(filepath.Join(path, file), os.O_WRONLY, 0); err == nil {
						f.WriteString(thaw)
						f.Close()
					}
				}
			}
			for _, path := range all {
				harness.Poll(time.Second, func() bool { err := os.Remove(path); return err == nil || os.IsNotExist(err) })
			}
		}
	}
}

// groupsIn returns a control group and its descendants, the innermost first.
func groupsIn(top string) (all []string) {
	filepath.WalkDir(top, func(path string, e os.DirEntry, err error) error {
		if err == nil && e.IsDir() {
			all = append(all, path)
		}
		return nil
	})
	slices.Reverse(all)
	return all
}

// removeGroups removes a control group and its descendants after their last process has ended.
func removeGroups(t *testing.T, top string) {
	for _, path := range groupsIn(top) {
		var err error
		if !harness.Poll(minute, func() bool { err = os.Remove(path); return err == nil || os.IsNotExist(err) }) {
			t.Errorf("a control group is left: %v", err)
			return
		}
	}
}
