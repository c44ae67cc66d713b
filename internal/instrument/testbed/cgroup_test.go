package testbed

import (
	"errors"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
)

func TestCPUController(t *testing.T) {
	const (
		old = `31 24 0:27 / /sys/fs/cgroup rw,relatime - tmpfs tmpfs rw,mode=755
32 31 0:28 / /sys/fs/cgroup/cpu,cpuacct rw,relatime - cgroup cgroup rw,cpu,cpuacct
33 31 0:29 / /sys/fs/cgroup/cpuset rw,relatime - cgroup cgroup rw,cpuset
40 31 0:36 / /sys/fs/cgroup/unified rw,relatime - cgroup2 cgroup2 rw
`
		new  = "35 24 0:30 / /sys/fs/cgroup rw,nosuid - cgroup2 cgroup2 rw,nsdelegate\n"
		part = "35 24 0:30 /pod /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n"
	)
	tests := []struct {
		name, mountinfo, ours, want string
		unified                     bool
	}{
		{"version 1", old, "3:cpuset:/\n2:cpu,cpuacct:/a/b\n0::/x\n", "/sys/fs/cgroup/cpu,cpuacct/a/b", false},
		{"version 2", new, "0::/user.slice/session-1.scope\n", "/sys/fs/cgroup/user.slice/session-1.scope", true},
		{"the root", new, "0::/\n", "/sys/fs/cgroup", true},
		{"both, the controller is version 2's", old, "3:cpuset:/\n0::/x\n", "/sys/fs/cgroup/unified/x", true},
		{"a part is mounted", part, "0::/pod/one\n", "/sys/fs/cgroup/one", true},
		{"another part is mounted", part, "0::/other\n", "", false},
		{"nothing is mounted", "", "0::/\n", "", false},
		{"nonsense", "x\n - \n", "y\n", "", false},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			got, unified, err := cpuController(test.mountinfo, test.ours)
			if got != test.want || unified != test.unified || (err != nil) != (test.want == "") {
				t.Errorf("got %q, %v, %v, want %q, %v", got, unified, err, test.want, test.unified)
			}
		})
	}
}

func FuzzCPUController(f *testing.F) {
	f.Add("35 24 0:30 /pod /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n", "0::/pod/one\n")
	f.Add("32 31 0:28 / /sys/fs/cgroup/cpu rw - cgroup cgroup rw,cpu\n", "1:cpu:/a\n")
	f.Fuzz(func(t *testing.T, mountinfo, ours string) {
		dir, _, err := cpuController(mountinfo, ours)
		if (dir == "") == (err == nil) {
			t.Errorf("got %q, %v, want one of both", dir, err)
		}
	})
}

func TestDelegating(t *testing.T) {
	root := t.TempDir()
	dir := filepath.Join(root, "scope")
	if err := os.Mkdir(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	control := func(dir, text string) {
		if err := os.WriteFile(filepath.Join(dir, "cgroup.subtree_control"), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	control(dir, "\n")
	control(root, "memory cpuset pids\n")
	if got, err := delegating(dir); err == nil {
		t.Errorf("got %s, want an error", got)
	}
	control(root, "cpu memory\n")
	if got, err := delegating(dir); got != root {
		t.Errorf("got %q, %v, want %q", got, err, root)
	}
	control(dir, "cpu\n")
	if got, err := delegating(dir); got != dir {
		t.Errorf("got %q, %v, want %q", got, err, dir)
	}
}

// Groups of a dead process are removed, those of a running one stay.
func TestGroups(t *testing.T) {
	gone, err := os.StartProcess("/bin/true", []string{"true"}, &os.ProcAttr{})
	if err != nil {
		t.Fatal(err)
	}
	gone.Wait()
	parent := t.TempDir()
	left := &Cgroups{parent: parent, prefix: namePrefix + strconv.Itoa(gone.Pid) + "-"}
	stale, err1 := left.Add("daemon")
	mine, other := cgroupsIn(parent), cgroupsIn(parent)
	fresh, err2 := mine.Add("daemon")
	others, err3 := other.Add("daemon")
	if err := errors.Join(err1, err2, err3); err != nil {
		t.Fatal(err)
	}
	mine.sweep()
	if _, err := os.Stat(stale); !os.IsNotExist(err) {
		t.Errorf("%s is still there (%v)", stale, err)
	}
	if err := mine.Remove(); err != nil {
		t.Error(err)
	}
	if _, err := os.Stat(others); err != nil {
		t.Errorf("the groups of another measurement of this process are gone: %v", err)
	}
	if _, err := os.Stat(fresh); !os.IsNotExist(err) {
		t.Errorf("%s is still there (%v)", fresh, err)
	}
	if _, err := (&Cgroups{parent: filepath.Join(parent, "none")}).Add("x"); err == nil || !strings.Contains(err.Error(), "run this as root") {
		t.Errorf("got %v, want what to do", err)
	}
}
