package podmanhosts

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"time"
)

// hierarchies are the mount points of control groups: one for all controllers, or one for each.
func hierarchies() (out []string) {
	const at = "/sys/fs/cgroup"
	if exists(at + "/cgroup.controllers") {
		return []string{at}
	}
	for _, c := range []string{"cpu", "cpuacct", "cpuset", "memory", "devices", "freezer", "blkio", "pids", "systemd", "unified"} {
		if exists(filepath.Join(at, c, "cgroup.procs")) {
			out = append(out, filepath.Join(at, c))
		}
	}
	return out
}

// makeGroups makes a control group in each hierarchy. CRIU freezes the groups of containers, which are below.
func makeGroups() (name string, err error) {
	name = fmt.Sprintf("/vrdma-hosts-%d", os.Getpid())
	for _, at := range hierarchies() {
		if err := os.Mkdir(at+name, 0o755); err != nil {
			return name, fmt.Errorf("no control group: %w", err)
		}
		if filepath.Base(at) != "cpuset" {
			continue
		}
		for _, file := range []string{"cpuset.cpus", "cpuset.mems"} { // otherwise no process can run in its children
			text, err := os.ReadFile(filepath.Join(at, file))
			if err == nil {
				err = os.WriteFile(filepath.Join(at+name, file), text, 0o644)
			}
			if err != nil {
				return name, err
			}
		}
	}
	return name, nil
}

// groupsIn returns a control group and those in it, the innermost first.
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

// thaw thaws the processes of the groups: a frozen process cannot be ended.
func thaw(name string) {
	if name == "" {
		return
	}
	for _, at := range hierarchies() {
		for _, path := range groupsIn(at + name) {
			// A hierarchy with a freezer has one of these files.
			for file, text := range map[string]string{"freezer.state": "THAWED", "cgroup.freeze": "0"} {
				if f, err := os.OpenFile(filepath.Join(path, file), os.O_WRONLY, 0); err == nil {
					f.WriteString(text) // the group may have gone
					f.Close()
				}
			}
		}
	}
}

// removeGroups removes the groups when their processes have ended.
func removeGroups(name string) (err error) {
	if name == "" {
		return nil
	}
	const most, every = 10 * time.Second, 10 * time.Millisecond
	for _, at := range hierarchies() {
		for _, path := range groupsIn(at + name) {
			for range most / every {
				if err = os.Remove(path); err == nil || os.IsNotExist(err) {
					err = nil
					break
				}
				time.Sleep(every)
			}
			if err != nil {
				return fmt.Errorf("a control group is left: %w", err)
			}
		}
	}
	return nil
}
