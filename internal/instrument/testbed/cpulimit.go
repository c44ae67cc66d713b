package testbed

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
)

// sharePeriod is the period of a processor limit in microseconds. It is short, so that a run of a second has many periods.
const sharePeriod = 20_000

// addLimited makes a control group whose programs share this percentage of one processor. It stands for a slow processor where the
// frequency cannot be set.
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

// A CPULimit limits the processor time of a cell's servers. A nil CPULimit limits nothing.
type CPULimit struct {
	cgroups *Cgroups
	server  string // the directory of the group
}

// LimitServers makes the control group of a cell's servers. Clients are not limited: the experiment measures what a slow server costs
// them.
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
		g.Remove() // err has the reason
		return nil, err
	}
	return s, nil
}

// Close removes the group.
func (s *CPULimit) Close() error {
	if s == nil {
		return nil
	}
	return s.cgroups.Remove()
}

// Launcher returns w, with its command in the limited group.
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
