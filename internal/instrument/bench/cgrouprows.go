package bench

import (
	"context"
	"fmt"
	"path/filepath"
	"slices"

	"vrdma.dev/vrdma/internal/instrument/probe"
	"vrdma.dev/vrdma/internal/instrument/speedtable"
	"vrdma.dev/vrdma/internal/instrument/testbed"
)

// apart measures the cost of a cpu control group and a session each for daemon, server and client, as in containers: sched_yield does
// not reach tasks of another group.
func (t *Table) apart() part {
	const who, against = "daemon, client and server in groups of their own", "all in one"
	return part{
		rows: slices.Concat(
			twice(who+": send latency, 64 B", against, 1.15, 0),
			[]speedtable.Row{
				ratioRow(who+": write bandwidth, 64 KiB, against "+against, 0.9),
				ratioRow(who+": 8 B writes, against "+against, 0.9),
				ratioRow(who+": write bandwidth, 64 KiB, another burns a processor, against "+against, 0.7),
			}),
		measure: func(ctx context.Context, rows []speedtable.Row) error {
			programs, err := t.Lab.Compile(ctx, "burn")
			if err != nil {
				return err
			}
			h, d, err := t.here(ctx)
			if err != nil {
				return err
			}
			a, err := newCgroupSetup(ctx, t.Lab)
			if err != nil {
				return err
			}
			defer func() {
				if closeErr := a.close(); closeErr != nil {
					fmt.Fprintf(t.Progress, "  %v\n", closeErr)
				}
			}()
			// The daemon of the other side is stopped. The burner is in the group of the programs, or in one more group.
			sides := []struct {
				route testbed.Route
				other *testbed.Daemon
				burn  []string
			}{
				{a.route, d, append(testbed.EnterCgroup(a.burner), programs["burn"], "one")},
				{h.Loopback(), a.daemon, []string{programs["burn"], "one"}},
			}
			// SCHED_IDLE ranks tasks within their group only, so for both sides the group of the burner has the lowest
			// priority.
			awake := append(testbed.EnterCgroup(a.idler), programs["burn"], "idle")
			var latency, others []probe.Probe
			for i, s := range sides {
				where := [...]string{"each in its own", "all in one"}[i]
				latency = append(latency, probe.On(probe.Latency(s.route, "ib_send_lat", latencySize, 10000), where).Without(s.other))
				bandwidth := probe.On(probe.Bandwidth(s.route, "ib_write_bw", bulkSize, 100000), where).Without(s.other)
				others = append(others, bandwidth,
					probe.On(probe.MessageRate(s.route, "ib_write_bw", smallMessage, 500000), where).Without(s.other),
					probe.BesideProgram(t.Lab, bandwidth, "a processor burnt", s.burn))
			}
			if err := t.fillTwice(ctx, awake, latency, rows[:2], []source{{0, 1}}); err != nil {
				return err
			}
			return t.fill(ctx, t.Rounds, others, rows[2:], []source{{0, 3}, {1, 4}, {2, 5}})
		},
	}
}

// A cgroupSetup is a daemon, a server's host and a client's host, each in a control group and a session of its own.
type cgroupSetup struct {
	groups *testbed.Cgroups
	daemon *testbed.Daemon
	route  testbed.Route
	burner string // a group for one more program
	idler  string // a group of the lowest priority
}

// newCgroupSetup makes the groups and starts the daemon.
func newCgroupSetup(ctx context.Context, l *testbed.Lab) (s *cgroupSetup, err error) {
	s = &cgroupSetup{}
	if s.groups, err = testbed.NewCgroups(); err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			s.close() // err has the reason
			s = nil
		}
	}()
	place := func(name string) *testbed.Host {
		dir, addErr := s.groups.Add(name)
		if addErr != nil && err == nil {
			err = addErr
		}
		return &testbed.Host{Lab: l, Socket: filepath.Join(l.Dir, "apart"), IP: l.Here.IP, Enter: testbed.EnterCgroup(dir)}
	}
	daemon := place("daemon")
	s.route = testbed.Route{Server: place("server"), Client: place("client")}
	if err != nil {
		return s, err
	}
	if s.burner, err = s.groups.Add("burner"); err != nil {
		return s, err
	}
	if s.idler, err = s.groups.AddIdle("idler"); err != nil {
		return s, err
	}
	s.daemon, err = daemon.Start(ctx, "--network=false")
	return s, err
}

// close stops the daemon and removes the groups.
func (s *cgroupSetup) close() error {
	if s.daemon != nil {
		s.daemon.Stop()
	}
	return s.groups.Remove()
}
