package bench

import (
	"context"
	"fmt"
	"strings"

	"vrdma.dev/vrdma/internal/instrument/drivers"
	"vrdma.dev/vrdma/internal/instrument/experiment"
	"vrdma.dev/vrdma/internal/instrument/probe"
	"vrdma.dev/vrdma/internal/instrument/speedtable"
	"vrdma.dev/vrdma/internal/instrument/testbed"
)

// A workload is what processor time is measured for, and its unit.
type workload struct {
	name     string
	unit     string
	size     int      // of a message
	quantity float64  // messages in one unit
	options  []string // of iperf3
	modes    [2]waitMode
}

// A waitMode is a tool and how it waits for completions. perftest cannot sleep for completions of writes.
type waitMode struct {
	name, tool string
	options    []string
}

var workloads = [2]workload{
	{"for a GiB", "core-s/GiB", bulkSize, (1 << 30) / bulkSize, nil, [2]waitMode{
		{"64 KiB writes, polling", "ib_write_bw", nil},
		{"64 KiB sends, sleeping", "ib_send_bw", []string{"-e"}},
	}},
	{"for a million messages", "core-s/million", smallMessage, 1e6, []string{"-l", "8", "-N"}, [2]waitMode{
		{"8 B sends, polling", "ib_send_bw", nil},
		{"8 B sends, sleeping", "ib_send_bw", []string{"-e"}},
	}},
}

// aimPerGiB is the aim for a GiB on one host, in core-seconds.
const aimPerGiB = 0.06

// costs measures the processor time of programs on one host and their daemon.
func (t *Table) costs() part {
	first := speedtable.Row{What: "processor time " + workloads[0].name + ", " + workloads[0].modes[0].name + ", one host", Ours: speedtable.Series{Unit: workloads[0].unit}, AtMost: true, Unbounded: true, Aim: aimPerGiB}
	return part{
		rows: append([]speedtable.Row{first}, costRows("one host", 0)...),
		measure: func(ctx context.Context, rows []speedtable.Row) error {
			h, d, err := t.here(ctx)
			if err != nil {
				return err
			}
			c := costRun{Table: t, route: h.Loopback(), daemons: []*testbed.Daemon{d}, messages: [2][2]int{{200000, 50000}, {1000000, 200000}}}
			err = c.measure(ctx, rows[1:], t.want(rows[0]))
			rows[0].Fill(rows[1].Ours)
			return err
		},
	}
}

// farCosts measures the same between two hosts, each with its daemon.
func (t *Table) farCosts() part {
	return part{
		rows: costRows("between two hosts", 1),
		measure: func(ctx context.Context, rows []speedtable.Row) error {
			w, err := t.Lab.NewHostPair(ctx, 9000)
			if err != nil {
				return err
			}
			defer w.Close()
			c := costRun{Table: t, route: w.Route(), daemons: w.Daemons, messages: [2][2]int{{30000, 20000}, {500000, 200000}}}
			return c.measure(ctx, rows, false)
		},
	}
}

// costRows returns the rows of a route. For each workload and mode there is the time charged to programs and daemons, and the time of
// the whole machine. aim is for a GiB.
func costRows(place string, aim float64) []speedtable.Row {
	var rows []speedtable.Row
	for i, w := range workloads {
		for _, m := range w.modes {
			for _, whose := range []string{"", ", whole machine"} {
				row := speedtable.Row{
					What:    "processor time " + w.name + ", " + m.name + ", " + place + whose + ", against TCP",
					Against: &speedtable.Series{}, AtMost: true, Unbounded: true,
				}
				if i == 0 {
					row.Aim = aim
				}
				rows = append(rows, row)
			}
		}
	}
	return rows
}

// A costRun measures processor time on one route, for the rows of that route.
type costRun struct {
	*Table
	route    testbed.Route
	daemons  []*testbed.Daemon
	messages [2][2]int // to move, by workload and mode
	// background is how busy the machine is while nothing is measured, read every round.
	background float64
}

// A costProbe measures the processor time of a unit: as charged to processes, and of the machine.
type costProbe struct {
	name    string
	measure func(context.Context) (cpuSeconds, error)
	series  [2]speedtable.Series
	skipped bool
}

// measure runs all probes in turn, for several rounds.
func (c *costRun) measure(ctx context.Context, rows []speedtable.Row, all bool) error {
	var list []*costProbe
	for i, w := range workloads {
		tcp := c.newProbe(strings.Join(append([]string{"iperf3"}, w.options...), " "), w, c.iperf3(w))
		tcp.skipped = c.oursOnly
		for j, m := range w.modes {
			at := i*4 + j*2
			ours := c.newProbe(strings.Join(append([]string{m.tool, "-s", fmt.Sprint(w.size)}, m.options...), " "), w, c.perftest(w, m, c.messages[i][j]))
			ours.skipped = !c.want(rows[at:at+2]...) && !(all && at == 0)
			list = append(list, ours)
		}
		tcp.skipped = tcp.skipped || !c.want(rows[i*4:i*4+4]...)
		list = append(list, tcp)
	}
	err := c.rounds(ctx, list)
	for i, w := range workloads {
		mine := list[3*i : 3*i+3]
		for j := range w.modes {
			for k := range 2 {
				rows[i*4+j*2+k].Fill(mine[j].series[k], mine[2].series[k])
			}
		}
	}
	return err
}

func (c *costRun) newProbe(name string, w workload, price func(context.Context) (cpuSeconds, error)) *costProbe {
	p := &costProbe{name: name, measure: price}
	for k := range p.series {
		p.series[k] = speedtable.Series{Name: name, Unit: w.unit}
	}
	return p
}

// rounds runs all probes in turn. A tool that fails is noted in its series.
func (c *costRun) rounds(ctx context.Context, list []*costProbe) error {
	for round := range c.Rounds {
		var err error
		if c.background, err = background(ctx); err != nil {
			return err
		}
		for _, p := range list {
			if p.skipped {
				continue
			}
			c.takeTurns()
			if len(p.series[0].Failures) >= probe.MaxFailures {
				continue
			}
			fmt.Fprintf(c.Progress, "  round %d of %d: processor time of %s ", round+1, c.Rounds, p.name)
			s, err := p.measure(ctx)
			switch {
			case ctx.Err() != nil:
				fmt.Fprintln(c.Progress)
				return testbed.ErrInterrupted
			case err != nil:
				fmt.Fprintln(c.Progress, "failed:", err)
				p.series[0].Failures = append(p.series[0].Failures, err.Error())
				p.series[1].Failures = append(p.series[1].Failures, err.Error())
			default:
				fmt.Fprintf(c.Progress, "%s, whole machine %s\n", experiment.Amount(s.processes, p.series[0].Unit), experiment.Amount(s.machine, p.series[1].Unit))
				p.series[0].Add(s.processes)
				p.series[1].Add(s.machine)
			}
		}
	}
	return nil
}

// perftest measures a unit. It runs the tool with few and with many messages, so that the start of the tool does not count.
func (c *costRun) perftest(w workload, m waitMode, many int) func(context.Context) (cpuSeconds, error) {
	const few = 1000
	run := func(ctx context.Context, messages int) (cpuSeconds, error) {
		return cpuTimeOf(ctx, c.background, c.daemons, func(ctx context.Context) error {
			_, err := drivers.RunBandwidth(ctx, c.route, testbed.WithDevice, m.tool, w.size, messages, m.options...)
			return err
		})
	}
	return func(ctx context.Context) (cpuSeconds, error) {
		start, err := run(ctx, few)
		if err != nil {
			return cpuSeconds{}, err
		}
		whole, err := run(ctx, many)
		return whole.minus(start).per(float64(many-few) / w.quantity), err
	}
}

// iperf3 measures the same over TCP. Its start takes a few milliseconds, little beside a second.
func (c *costRun) iperf3(w workload) func(context.Context) (cpuSeconds, error) {
	return func(ctx context.Context) (cpuSeconds, error) {
		var moved uint64
		s, err := cpuTimeOf(ctx, c.background, nil, func(ctx context.Context) (err error) {
			_, moved, err = drivers.RunIperf3(ctx, c.route, testbed.Plain, w.options...)
			return err
		})
		if err != nil {
			return cpuSeconds{}, err
		}
		return s.per(float64(moved) / float64(w.size) / w.quantity), nil
	}
}

// per divides by a number of units.
func (s cpuSeconds) per(units float64) cpuSeconds {
	return cpuSeconds{s.processes / units, s.machine / units}
}
