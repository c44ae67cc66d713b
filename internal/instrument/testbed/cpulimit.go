package testbed

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
)

// sharePeriod is in which time a program has its share of a processor, in microseconds. It is short, so that a run of a second has
// many of them.
const sharePeriod = 20_000

// addLimited makes a control group in which programs have so many percent of a processor together. It is what stands for a slow
// processor where no frequency can be chosen.
func (g *Cgroups) addLimited(name string, percent int) (dir string, err error) {
	if dir, err = g.Add(name); err != nil {
		return "", err
	}
	quota := sharePeriod * percent / 100
	unified := os.WriteFile(filepath.Join(dir, "cpu.max"), fmt.Appendf(nil, "%d %d", quota, sharePeriod), 0o644)
	if unified == nil {
		return dir, nil
	}
	err = errors.Join(
		os.WriteFile(filepath.Join(dir, "cpu.cfs_period_us"), fmt.Append(nil, sharePeriod), 0o644),
		os.WriteFile(filepath.Join(dir, "cpu.cfs_quota_us"), fmt.Append(nil, quota), 0o644))
	if err != nil {
		return "", fmt.Errorf("programs cannot be limited to %d %% of a processor: %w, %w; %s", percent, unified, err, cgroupsRemedy)
	}
	return dir, nil
}

// A CPULimit is how the servers of a cell are kept from having a whole processor each. A nil one keeps nobody.
type CPULimit struct {
	cgroups *Cgroups
	server  string // a directory
}

// LimitServers makes the group of a cell's servers. Clients have as much as they want: what is asked is what a slow server costs them.
func LimitServers(share, pairs int) (s *CPULimit, err error) {
	if share == 0 {
		return nil, nil
	}
	g, err := NewCgroups()
	if err != nil {
		return nil, err
	}
	s = &CPULimit{cgroups: g}
	if s.server, err = g.addLimited("slow-server", share*pairs); err != nil {
		g.Remove() // what is left is empty
		return nil, err
	}
	return s, nil
}

// Close takes the group away.
func (s *CPULimit) Close() error {
	if s == nil {
		return nil
	}
	return s.cgroups.Remove()
}

// Launcher is w with a server in its group.
func (s *CPULimit) Launcher(w Launcher) Launcher {
	if s == nil {
		return w
	}
	slowed := w
	slowed.Command = func(h *Host, argv ...string) []string {
		return append([]string{"sh", "-c", `echo $$ >"$0" && exec "$@"`, filepath.Join(s.server, "cgroup.procs")}, w.Command(h, argv...)...)
	}
	return slowed
}
