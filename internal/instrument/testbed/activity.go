package testbed

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"
)

// A groupActivity says what the processes of one name were doing when a run timed out.
type groupActivity struct {
	name           string
	count, running int
	least, most    time.Duration // processor time of one process
}

func (d groupActivity) String() string {
	text := fmt.Sprintf("%s (%d, of which %d run) had %.1f", d.name, d.count, d.running, d.least.Seconds())
	if d.most-d.least >= 100*time.Millisecond {
		text += fmt.Sprintf(" to %.1f", d.most.Seconds())
	}
	return text + " s of processor time"
}

// activity describes the programs of a run that timed out: the processes of a process group and of the roles' control groups. MPI
// ranks leave the process group but not the control group. Programs that wait for each other sleep; programs that compete for
// processors run and have little processor time.
func (a *Accounting) activity(group int) string {
	members := make(map[string]bool)
	if a != nil {
		for _, role := range a.roles {
			text, _ := os.ReadFile(filepath.Join(a.parent, role, "cgroup.procs")) // on failure the process group remains
			for pid := range strings.FieldsSeq(string(text)) {
				members[pid] = true
			}
		}
	}
	var groups []groupActivity
	files, _ := filepath.Glob("/proc/[0-9]*/stat")
	for _, file := range files {
		text, _ := os.ReadFile(file) // it may have ended
		before, after, found := strings.Cut(string(text), ") ")
		words := strings.Fields(after)
		pid, name, _ := strings.Cut(before, " (")
		if !found || len(words) < 13 || !members[pid] && words[2] != strconv.Itoa(group) {
			continue
		}
		user, _ := strconv.ParseInt(words[11], 10, 64) // the kernel writes numbers
		system, _ := strconv.ParseInt(words[12], 10, 64)
		used := time.Duration(user+system) * time.Second / TicksPerSecond
		i := slices.IndexFunc(groups, func(d groupActivity) bool { return d.name == name })
		if i < 0 {
			i = len(groups)
			groups = append(groups, groupActivity{name: name, least: used})
		}
		d := &groups[i]
		d.count++
		if words[0] == "R" {
			d.running++
		}
		d.least, d.most = min(d.least, used), max(d.most, used)
	}
	words := make([]string, len(groups))
	for i, d := range groups {
		words[i] = d.String()
	}
	return strings.Join(words, "; ")
}
