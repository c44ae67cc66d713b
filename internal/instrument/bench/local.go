package bench

import (
	"context"
	"fmt"
	"strconv"
	"time"

	"vrdma.dev/vrdma/internal/instrument/experiment"
	"vrdma.dev/vrdma/internal/instrument/probe"
	"vrdma.dev/vrdma/internal/instrument/speedtable"
	"vrdma.dev/vrdma/internal/instrument/testbed"
)

const (
	hugeSize         = 64 << 20
	regionSize       = 256 << 20
	idleProgramCount = 100
	idleQPs          = 10
	idleTime         = 10 * time.Second
)

// cycleSizes are the buffers that are registered and deregistered in a loop, how often in a round, and further arguments of the
// program.
var cycleSizes = []struct {
	bytes, times int
	args         []string
}{
	{4 << 10, 500, nil}, {1 << 20, 50, nil}, {regionSize, 3, nil},
	{4 << 10, 500, []string{"4"}}, {4 << 10, 500, []string{"4", "nouffd"}},
}

// local measures programs on one host: speed, registration, memory and idle cost.
func (t *Table) local() part {
	var ( // indices of the first row of each step
		speed        = 2
		registration = speed + 10
		cycles       = registration + 2
		foreign      = cycles + 2*len(cycleSizes)
		idleness     = foreign + 1
	)
	return part{
		name: "local",
		rows: []speedtable.Row{
			{What: "daemon memory, idle", Ours: speedtable.Series{Unit: "B"}, Bound: 40 << 20, AtMost: true},
			{What: "daemon memory for each further QP", Ours: speedtable.Series{Unit: "B"}, Bound: 64 << 10, AtMost: true},

			ratioRow("write bandwidth, 64 KiB, against TCP", 4),
			ratioRow("write bandwidth, 64 MiB, against a cold memcpy", 0.6),
			ratioAtMost("send latency, 64 B, against TCP", 0.5),
			ratioAtMost("write latency, 64 B, against TCP", 0.5),
			ratioRow("8 B writes, one QP, against a bare ring", 0.2),
			ratioRow("8 B sends, one QP, against a bare ring", 0.2),
			{What: "8 B writes, one QP, against a ring of one slot", Against: &speedtable.Series{}, Unbounded: true},
			{What: "8 B sends, one QP, against a ring of one slot", Against: &speedtable.Series{}, Unbounded: true},
			{What: "8 B writes, one QP", Ours: speedtable.Series{Unit: "/s"}, Bound: 1.5e6},
			{What: "8 B sends, one QP", Ours: speedtable.Series{Unit: "/s"}, Bound: 1.5e6},

			{What: "registering 256 MiB", Ours: speedtable.Series{Unit: "s"}, Bound: 0.5, AtMost: true},
			{What: "registering it again", Ours: speedtable.Series{Unit: "s"}, Bound: 0.005, AtMost: true},

			ratioAtMost("registering and deregistering 4 KiB in a loop, against a first registration", 2),
			ratioAtMost("deregistering 4 KiB, against a first registration", 1),
			ratioAtMost("registering and deregistering 1 MiB in a loop, against a first registration", 2),
			ratioAtMost("deregistering 1 MiB, against a first registration", 1),
			ratioAtMost("registering and deregistering 256 MiB in a loop, against a first registration", 2),
			ratioAtMost("deregistering 256 MiB, against a first registration", 1),
			ratioAtMost("registering and deregistering 4 KiB in a loop, 4 idle threads, against a first registration", 2),
			ratioAtMost("deregistering 4 KiB, 4 idle threads, against a first registration", 1),
			ratioAtMost("registering and deregistering 4 KiB in a loop, 4 idle threads, no userfaultfd, against a first registration", 2),
			ratioAtMost("deregistering 4 KiB, 4 idle threads, no userfaultfd, against a first registration", 1),

			{What: "send latency, 64 B, foreign memory against mapped", Against: &speedtable.Series{}, AtMost: true, Unbounded: true},

			{What: "daemon's CPU with 1000 idle QPs in 100 programs", Ours: speedtable.Series{Unit: "%"}, Bound: 1, AtMost: true, Step: 0.1},
			{What: "daemon memory, idle again after all this", Ours: speedtable.Series{Unit: "B"}, Bound: 40 << 20, AtMost: true},
		},
		measure: func(ctx context.Context, rows []speedtable.Row) error {
			programs, err := t.Lab.Compile(ctx, "ring", "copy", "register", "cycle", "foreign", "idle")
			if err != nil {
				return err
			}
			h, d, err := t.here(ctx)
			if err != nil {
				return err
			}
			l := &localRows{Table: t, host: h, daemon: d, programs: programs}
			for _, step := range []func(context.Context) error{
				func(ctx context.Context) error { return l.footprint(ctx, rows[:speed]) },
				func(ctx context.Context) error { return l.speed(ctx, rows[speed:registration]) },
				func(ctx context.Context) error { return l.registration(ctx, rows[registration:cycles]) },
				func(ctx context.Context) error { return l.cycles(ctx, rows[cycles:foreign]) },
				func(ctx context.Context) error { return l.foreign(ctx, &rows[foreign]) },
				func(ctx context.Context) error { return l.idleCPU(ctx, &rows[idleness]) },
				func(context.Context) error { return l.memoryAfter(&rows[idleness+1]) },
			} {
				if err := step(ctx); err != nil {
					return err
				}
			}
			return nil
		},
	}
}

// localRows measures the steps of part local.
type localRows struct {
	*Table
	host     *testbed.Host
	daemon   *testbed.Daemon
	programs map[string]string
}

// memory is a series of readings of the daemon's memory.
func memory(bytes ...float64) speedtable.Series {
	return speedtable.Series{Name: "RssAnon", Unit: "B", Values: bytes}
}

// footprint measures the memory of a new daemon and of each queue pair. It uses several daemons, because single readings vary.
func (l *localRows) footprint(ctx context.Context, rows []speedtable.Row) error {
	if !l.want(rows...) {
		return nil
	}
	var idle, each []float64
	for range l.Rounds {
		l.takeTurns()
		l.stop()
		var err error
		if l.host, l.daemon, err = l.here(ctx); err != nil {
			return err
		}
		i, e, err := l.memoryPerQP(ctx)
		if err != nil {
			return err
		}
		idle, each = append(idle, i), append(each, e)
		fmt.Fprintf(l.Progress, "  daemon's memory: %s, %s for each QP\n", experiment.Amount(i, "B"), experiment.Amount(e, "B"))
	}
	rows[0].Fill(memory(idle...))
	rows[1].Fill(memory(each...))
	return nil
}

// memoryPerQP returns the memory of a new daemon, and what each queue pair adds.
func (l *localRows) memoryPerQP(ctx context.Context) (idle, each float64, err error) {
	if idle, err = l.daemon.AnonymousMemory(); err != nil {
		return 0, 0, err
	}
	rss := func(qps int) (float64, error) {
		sleeping, err := l.host.StartIdle(ctx, l.programs["idle"], 1, qps)
		if err != nil {
			return 0, err
		}
		defer sleeping.Stop()
		return l.daemon.AnonymousMemory()
	}
	const few, many = 10, 1000
	before, err := rss(few)
	if err != nil {
		return 0, 0, err
	}
	after, err := rss(many)
	return idle, (after - before) / (many - few), err
}

// speed measures bandwidth, latency and message rates.
func (l *localRows) speed(ctx context.Context, rows []speedtable.Row) error {
	r, lab := l.host.Loopback(), l.Lab
	probes := []probe.Probe{
		0:  probe.Bandwidth(r, "ib_write_bw", bulkSize, 20000),
		1:  probe.Qperf(r, "tcp_bw", "bw", "B/s", bulkSize),
		2:  probe.Latency(r, "ib_send_lat", latencySize, 10000),
		3:  probe.Qperf(r, "tcp_lat", "latency", "s", latencySize),
		4:  probe.Latency(r, "ib_write_lat", latencySize, 10000),
		5:  probe.MessageRate(r, "ib_write_bw", smallMessage, 500000),
		6:  probe.Baseline(lab, "ring of 1 slot", "/s", l.programs["ring"], "20", "1"),
		7:  probe.MessageRate(r, "ib_send_bw", smallMessage, 500000),
		8:  probe.Bandwidth(r, "ib_write_bw", hugeSize, 50),
		9:  probe.Baseline(lab, "memcpy of 64 MiB", "B/s", l.programs["copy"], strconv.Itoa(hugeSize), "11"),
		10: probe.Baseline(lab, "ring of 128 slots", "/s", l.programs["ring"], "50", "128"),
	}
	return l.fill(ctx, l.Rounds, probes, rows, []source{
		{0, 1}, {8, 9}, {2, 3}, {4, 3}, {5, 10}, {7, 10}, {5, 6}, {7, 6}, {5, alone}, {7, alone},
	})
}

// registration measures ibv_reg_mr.
func (l *localRows) registration(ctx context.Context, rows []speedtable.Row) error {
	if !l.want(rows...) {
		return nil
	}
	first := speedtable.Series{Name: "ibv_reg_mr", Unit: "s"}
	again := speedtable.Series{Name: "ibv_reg_mr", Unit: "s"}
	for range l.Rounds {
		l.takeTurns()
		seconds, err := l.Lab.Numbers(ctx, 2, l.host.Under(l.programs["register"], strconv.Itoa(regionSize))...)
		if err != nil {
			return err
		}
		first.Add(seconds[0])
		again.Add(seconds[1])
		fmt.Fprintf(l.Progress, "  registering 256 MiB: %s, again %s\n", experiment.Amount(seconds[0], "s"), experiment.Amount(seconds[1], "s"))
	}
	rows[0].Fill(first)
	rows[1].Fill(again)
	return nil
}

// foreign compares the latency of foreign memory, which cannot be mapped, with mapped memory.
func (l *localRows) foreign(ctx context.Context, row *speedtable.Row) error {
	if !l.want(*row) {
		return nil
	}
	mapped := speedtable.Series{Name: "mapped memory", Unit: "s"}
	foreign := speedtable.Series{Name: "foreign memory", Unit: "s"}
	for range l.Rounds {
		l.takeTurns()
		seconds, err := l.Lab.Numbers(ctx, 2, l.host.Under(l.programs["foreign"], "2000")...)
		if err != nil {
			return err
		}
		mapped.Add(seconds[0])
		foreign.Add(seconds[1])
		fmt.Fprintf(l.Progress, "  send of 64 B: mapped memory %s, foreign %s\n", experiment.Amount(seconds[0], "s"), experiment.Amount(seconds[1], "s"))
	}
	row.Fill(foreign, mapped)
	return nil
}

// cycles measures a buffer that is registered, used and deregistered repeatedly.
func (l *localRows) cycles(ctx context.Context, rows []speedtable.Row) error {
	for i, size := range cycleSizes {
		if !l.want(rows[2*i : 2*i+2]...) {
			continue
		}
		first := speedtable.Series{Name: "first ibv_reg_mr", Unit: "s"}
		both := speedtable.Series{Name: "ibv_reg_mr and ibv_dereg_mr", Unit: "s"}
		back := speedtable.Series{Name: "ibv_dereg_mr", Unit: "s"}
		for range l.Rounds {
			l.takeTurns()
			cmd := append([]string{l.programs["cycle"], strconv.Itoa(size.bytes), strconv.Itoa(size.times)}, size.args...)
			seconds, err := l.Lab.Numbers(ctx, 3, l.host.Under(cmd...)...)
			if err != nil {
				return err
			}
			first.Add(seconds[0])
			both.Add(seconds[1])
			back.Add(seconds[2])
			fmt.Fprintf(l.Progress, "  registering %s: %s, in a loop with deregistering %s, deregistering alone %s\n",
				experiment.Amount(float64(size.bytes), "B"), experiment.Amount(seconds[0], "s"), experiment.Amount(seconds[1], "s"), experiment.Amount(seconds[2], "s"))
		}
		rows[2*i].Fill(both, first)
		rows[2*i+1].Fill(back, first)
	}
	return nil
}

// memoryAfter measures the memory of an idle daemon after all measurements.
func (l *localRows) memoryAfter(row *speedtable.Row) error {
	if !l.want(*row) {
		return nil
	}
	idle, err := l.daemon.AnonymousMemory()
	if err != nil {
		return err
	}
	row.Fill(memory(idle))
	return nil
}

// idleCPU measures the daemon's processor time with a thousand idle queue pairs.
func (l *localRows) idleCPU(ctx context.Context, row *speedtable.Row) error {
	if !l.want(*row) {
		return nil
	}
	l.takeTurns()
	fmt.Fprintf(l.Progress, "  starting %d programs with %d idle QPs each\n", idleProgramCount, idleQPs)
	sleeping, err := l.host.StartIdle(ctx, l.programs["idle"], idleProgramCount, idleQPs)
	if err != nil {
		return err
	}
	defer sleeping.Stop()
	used, err := idleShare(ctx, l.daemon)
	if err != nil {
		return err
	}
	fmt.Fprintf(l.Progress, "  daemon's CPU: %s of a core\n", experiment.Amount(used.Median(), "%"))
	row.Fill(used)
	return nil
}
