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

// hierarchies are where control groups are mounted: one for each controller, or one for all.
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

// controlGroup makes one in each hierarchy, for an engine's own. They are gone after the test, with those that the engine
// has left there: the host's processes have ended by then.
func controlGroup(t *testing.T) string {
	t.Helper()
	name := fmt.Sprintf("/vrdma-test-%d-%d", os.Getpid(), time.Now().UnixNano())
	for _, at := range hierarchies() {
		// With one hierarchy for all controllers its groups account for memory only if asked to.
		if f, err := os.OpenFile(filepath.Join(at, "cgroup.subtree_control"), os.O_WRONLY, 0); err == nil {
			f.WriteString("+memory") // a test that needs it finds out
			f.Close()
		}
		if err := os.Mkdir(at+name, 0o755); err != nil {
			t.Fatalf("a control group: %v (the test needs root)", err)
		}
		if filepath.Base(at) == "cpuset" { // or nothing runs in groups below it
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

// buryGroups thaws and removes the control groups of tests that were killed: what is frozen does not even die.
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
				// One of the two is there, in a hierarchy that freezes.
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

// groupsIn are a control group and those in it, the innermost first.
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

// removeGroups removes a control group and those in it, when their last process has ended.
func removeGroups(t *testing.T, top string) {
	for _, path := range groupsIn(top) {
		var err error
		if !harness.Poll(minute, func() bool { err = os.Remove(path); return err == nil || os.IsNotExist(err) }) {
			t.Errorf("a control group is left: %v", err)
			return
		}
	}
}
