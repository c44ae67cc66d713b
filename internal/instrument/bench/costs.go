package bench

import (
	"context"
	"fmt"
	"strings"

	"vrdma.dev/vrdma/internal/instrument/drivers"
	"vrdma.dev/vrdma/internal/instrument/experiment"
	"vrdma.dev/vrdma/internal/instrument/testbed"
)

// A workload is what processor time is spent on, and how it is counted.
type workload struct {
	name     string
	unit     string
	size     int      // of a message
	quantity float64  // messages in one unit
	options  []string // of iperf3
	modes    [2]waitMode
}

// A waitMode is how programs move it and wait. perftest knows no writes whose completions
// are slept for.
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

// aimPerGiB is the most that a GiB on one host should cost.
const aimPerGiB = 0.06

// costs is the processor time that programs on one host take, with their daemon.
func (t *Table) costs() part {
	first := Row{What: "processor time " + workloads[0].name + ", " + workloads[0].modes[0].name + ", one host", Ours: Series{Unit: workloads[0].unit}, AtMost: true, Unbounded: true, Aim: aimPerGiB}
	return part{
		rows: append([]Row{first}, costRows("one host", 0)...),
		measure: func(ctx context.Context, rows []Row) error {
			h, d, err := t.here(ctx)
			if err != nil {
				return err
			}
			c := costRun{Table: t, route: h.Loopback(), daemons: []*testbed.Daemon{d}, messages: [2][2]int{{200000, 50000}, {1000000, 200000}}}
			err = c.measure(ctx, rows[1:], t.want(rows[0]))
			rows[0].fill(rows[1].Ours)
			return err
		},
	}
}

// farCosts is the same of two hosts, each with its daemon.
func (t *Table) farCosts() part {
	return part{
		rows: costRows("between two hosts", 1),
		measure: func(ctx context.Context, rows []Row) error {
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

// costRows are the rows of a place: of every ware and manner what programs and daemons
// were charged with, and what the whole machine did. aim is for GiBs.
func costRows(place string, aim float64) []Row {
	var rows []Row
	for i, w := range workloads {
		for _, m := range w.modes {
			for _, whose := range []string{"", ", whole machine"} {
				row := Row{
					What:    "processor time " + w.name + ", " + m.name + ", " + place + whose + ", against TCP",
					Against: &Series{}, AtMost: true, Unbounded: true,
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

// A costRun measures the rows of a place.
type costRun struct {
	*Table
	route    testbed.Route
	daemons  []*testbed.Daemon
	messages [2][2]int // that are moved, of every ware in every manner
	// background is how busy the machine is when nothing is measured, looked at every round.
	background float64
}

// A costProbe is something whose price is measured: per unit, as charged and of the machine.
type costProbe struct {
	name    string
	measure func(context.Context) (cpuSeconds, error)
	series  [2]Series
	skipped bool
}

// measure prices everything in turn, round after round.
func (c *costRun) measure(ctx context.Context, rows []Row, all bool) error {
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
				rows[i*4+j*2+k].fill(mine[j].series[k], mine[2].series[k])
			}
		}
	}
	return err
}

func (c *costRun) newProbe(name string, w workload, price func(context.Context) (cpuSeconds, error)) *costProbe {
	p := &costProbe{name: name, measure: price}
	for k := range p.series {
		p.series[k] = Series{Name: name, Unit: w.unit}
	}
	return p
}

// rounds prices everything in turn. A tool that fails says so in its series.
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
			if len(p.series[0].Failures) >= maxFailures {
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
				p.series[0].add(drivers.Reading{Value: s.processes})
				p.series[1].add(drivers.Reading{Value: s.machine})
			}
		}
	}
	return nil
}

// perftest prices a unit. What starting the tool costs is taken out: it is run with few
// messages and with many.
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

// iperf3 prices the same over TCP. Starting it costs some milliseconds of processor time,
// which are little beside a second.
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

// per is what a unit cost, if so many did.
func (s cpuSeconds) per(units float64) cpuSeconds {
	return cpuSeconds{s.processes / units, s.machine / units}
}
