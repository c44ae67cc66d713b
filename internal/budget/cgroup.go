package budget

import (
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// Memory limits of control groups. A process is in one group of each hierarchy: version 2 has one
// hierarchy with all controllers, version 1 one for each controller or set of controllers, and a
// hybrid system has both, with memory in one of them.
//
//	/proc/self/cgroup     0::/system.slice/vrdma.service      version 2
//	                      4:memory:/system.slice/vrdma.service version 1
//	/proc/self/mountinfo  where each hierarchy is mounted, and which of its groups is the mount's root:
//	                      a container sees its own group as the root, or the host's path without the groups above it
//
// Every group up to the root limits its descendants, so the lowest limit counts.

// groupMemory returns the lowest memory limit of the control groups that this process is in. proc is
// /proc/self.
func groupMemory(proc string) uint64 {
	lowest := uint64(math.MaxInt64)
	groups, err := os.ReadFile(filepath.Join(proc, "cgroup"))
	if err != nil {
		return lowest
	}
	mounts, err := os.ReadFile(filepath.Join(proc, "mountinfo"))
	if err != nil {
		return lowest
	}
	hierarchies := parseHierarchies(string(mounts))
	for line := range strings.Lines(string(groups)) {
		number, rest, _ := strings.Cut(strings.TrimSpace(line), ":")
		controllers, path, ok := strings.Cut(rest, ":")
		if !ok {
			continue
		}
		for _, h := range hierarchies {
			if h.version2 && number == "0" && controllers == "" {
				lowest = min(lowest, h.lowest(path, "memory.max", "memory.high"))
			} else if !h.version2 && slices.Contains(strings.Split(controllers, ","), "memory") {
				lowest = min(lowest, h.lowest(path, "memory.limit_in_bytes"))
			}
		}
	}
	return lowest
}

// A hierarchy is a mounted hierarchy of control groups that can have a memory controller.
type hierarchy struct {
	version2 bool
	root     string // the group that is mounted
	at       string
}

// parseHierarchies finds the hierarchies in the text of /proc/PID/mountinfo:
//
//	35 31 0:32 / /sys/fs/cgroup/memory rw,relatime shared:9 - cgroup cgroup rw,memory
func parseHierarchies(mountinfo string) (list []hierarchy) {
	for line := range strings.Lines(mountinfo) {
		place, kind, ok := strings.Cut(strings.TrimSpace(line), " - ")
		where, what := strings.Fields(place), strings.Fields(kind)
		if !ok || len(where) < 5 || len(what) < 3 {
			continue
		}
		switch what[0] {
		case "cgroup2":
			list = append(list, hierarchy{version2: true, root: where[3], at: where[4]})
		case "cgroup":
			if slices.Contains(strings.Split(what[2], ","), "memory") {
				list = append(list, hierarchy{root: where[3], at: where[4]})
			}
		}
	}
	return list
}

// below returns the path of a group below the mount. Where the mount does not show the group, its root stands for it: a
// container sees only its own groups.
func (h hierarchy) below(group string) string {
	below, err := filepath.Rel(h.root, filepath.Clean("/"+group))
	if err != nil || below == ".." || strings.HasPrefix(below, "../") {
		return "."
	}
	return below
}

// lowest returns the lowest number in the named files of a group and the groups above it.
func (h hierarchy) lowest(group string, files ...string) uint64 {
	lowest := uint64(math.MaxInt64)
	for below := h.below(group); ; below = filepath.Dir(below) {
		for _, f := range files {
			lowest = min(lowest, readNumber(filepath.Join(h.at, below, f)))
		}
		if below == "." {
			return lowest
		}
	}
}
