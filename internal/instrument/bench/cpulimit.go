package bench

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
)

// sharePeriod is in which time a program has its share of a processor, in microseconds. It is short, so that a run of a second has
// many of them.
const sharePeriod = 20_000

// limitShare makes a control group in which programs have so many percent of a processor together. It is what stands for a slow
// processor where no frequency can be chosen.
func (g *groups) limitShare(name string, percent int) (dir string, err error) {
	if dir, err = g.add(name); err != nil {
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
		return "", fmt.Errorf("programs cannot be limited to %d %% of a processor: %w, %w; %s", percent, unified, err, groupsRemedy)
	}
	return dir, nil
}

// A slowdown is how the servers of a cell are kept from having a whole processor each. A nil one keeps nobody.
type slowdown struct {
	groups *groups
	server string // a directory
}

// slow makes the group of a cell's servers. Clients have as much as they want: what is asked is what a slow server costs them.
func slow(share, pairs int) (s *slowdown, err error) {
	if share == 0 {
		return nil, nil
	}
	g, err := newGroups()
	if err != nil {
		return nil, err
	}
	s = &slowdown{groups: g}
	if s.server, err = g.limitShare("slow-server", share*pairs); err != nil {
		g.remove() // what is left is empty
		return nil, err
	}
	return s, nil
}

// done takes the group away.
func (s *slowdown) done() error {
	if s == nil {
		return nil
	}
	return s.groups.remove()
}

// way is w with a server in its group.
func (s *slowdown) way(w way) way {
	if s == nil {
		return w
	}
	slowed := w
	slowed.side = func(h *Host, argv ...string) []string {
		return append([]string{"sh", "-c", `echo $$ >"$0" && exec "$@"`, filepath.Join(s.server, "cgroup.procs")}, w.side(h, argv...)...)
	}
	return slowed
}
