package budget

import (
	"fmt"
	"math"
	"os"
	"path/filepath"
	"testing"
)

func TestGroupMemory(t *testing.T) {
	const (
		none  = math.MaxInt64
		noMax = "9223372036854771712" // what version 1 says of a group without a limit
	)
	for _, c := range []struct {
		name, cgroup, mounts string
		files                map[string]string
		want                 uint64
	}{
		{"version 2", "0::/a/b\n", "30 23 0:26 / %s/cg rw - cgroup2 cgroup2 rw\n",
			map[string]string{"cg/memory.max": "max", "cg/a/memory.max": "300", "cg/a/b/memory.max": "max"}, 300},
		{"version 2, high", "0::/a\n", "30 23 0:26 / %s/cg rw - cgroup2 cgroup2 rw\n",
			map[string]string{"cg/a/memory.max": "300", "cg/a/memory.high": "200"}, 200},
		{"version 1", "4:memory:/a/b\n1:cpu:/c\n0::/\n", "31 1 0:3 / %s/memory rw shared:9 - cgroup cgroup rw,memory\n32 1 0:4 / %[1]s/cpu rw - cgroup cgroup rw,cpu\n",
			map[string]string{"memory/memory.limit_in_bytes": noMax, "memory/a/memory.limit_in_bytes": "4096", "memory/a/b/memory.limit_in_bytes": noMax, "cpu/c/memory.limit_in_bytes": "1"}, 4096},
		{"two controllers", "4:hugetlb,memory:/a\n", "31 1 0:3 / %s/m rw - cgroup cgroup rw,hugetlb,memory\n",
			map[string]string{"m/a/memory.limit_in_bytes": "5"}, 5},
		{"hybrid", "4:memory:/a\n0::/a\n", "31 1 0:3 / %s/m rw - cgroup cgroup rw,memory\n33 1 0:5 / %[1]s/unified rw - cgroup2 cgroup2 rw\n",
			map[string]string{"m/a/memory.limit_in_bytes": "7", "unified/a/memory.max": "9"}, 7},
		{"container, the host's path", "4:memory:/docker/x/y\n", "31 1 0:3 /docker/x %s/m rw - cgroup cgroup rw,memory\n",
			map[string]string{"m/memory.limit_in_bytes": "8", "m/y/memory.limit_in_bytes": "9"}, 8},
		{"container, a path that is not mounted", "0::/../other\n", "31 1 0:3 / %s/m rw - cgroup2 cgroup2 rw\n",
			map[string]string{"m/memory.max": "8"}, 8},
		{"above the mount", "4:memory:/elsewhere\n", "31 1 0:3 /docker/x %s/m rw - cgroup cgroup rw,memory\n",
			map[string]string{"m/memory.limit_in_bytes": "8"}, 8},
		{"no mount", "0::/a\n", "", nil, none},
		{"garbage", "x\n0:\n\n", "a - b\n - cgroup2\n", nil, none},
	} {
		t.Run(c.name, func(t *testing.T) {
			dir := t.TempDir()
			for name, text := range c.files {
				path := filepath.Join(dir, name)
				if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
					t.Fatal(err)
				}
				if err := os.WriteFile(path, []byte(text+"\n"), 0o600); err != nil {
					t.Fatal(err)
				}
			}
			mounts := c.mounts
			if len(c.files) > 0 {
				mounts = fmt.Sprintf(c.mounts, dir)
			}
			for name, text := range map[string]string{"cgroup": c.cgroup, "mountinfo": mounts} {
				if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
					t.Fatal(err)
				}
			}
			if got := groupMemory(dir); got != c.want {
				t.Errorf("got %d, want %d", got, c.want)
			}
		})
	}
}

func FuzzParseHierarchies(f *testing.F) {
	f.Add("35 31 0:32 / /sys/fs/cgroup/memory rw,relatime - cgroup cgroup rw,memory\n30 23 0:26 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n", "/a/b")
	f.Fuzz(func(t *testing.T, mountinfo, group string) {
		for _, h := range parseHierarchies(mountinfo) {
			h.at = t.TempDir()
			h.lowest(group, "memory.max")
		}
	})
}
