package bench

import (
	"context"
	"fmt"
	"strings"
)

// A ware is what processor time is spent on, and how it is counted.
type ware struct {
	what     string
	unit     string
	size     int      // of a message
	quantity float64  // messages in one unit
	options  []string // of iperf3
	manners  [2]manner
}

// A manner is how programs move it and wait. perftest knows no writes whose completions
// are slept for.
type manner struct {
	name, tool string
	options    []string
}

var wares = [2]ware{
	{"for a GiB", "core-s/GiB", bulkSize, (1 << 30) / bulkSize, nil, [2]manner{
		{"64 KiB writes, polling", "ib_write_bw", nil},
		{"64 KiB sends, sleeping", "ib_send_bw", []string{"-e"}},
	}},
	{"for a million messages", "core-s/million", smallMessage, 1e6, []string{"-l", "8", "-N"}, [2]manner{
		{"8 B sends, polling", "ib_send_bw", nil},
		{"8 B sends, sleeping", "ib_send_bw", []string{"-e"}},
	}},
}

// aimed is the most that a GiB on one host should cost.
const aimed = 0.06

// costs is the processor time that programs on one host take, with their daemon.
func (t *Table) costs() part {
	first := Row{What: "processor time " + wares[0].what + ", " + wares[0].manners[0].name + ", one host", Ours: Series{Unit: wares[0].unit}, AtMost: true, Unbounded: true, Aim: aimed}
	return part{
		rows: append([]Row{first}, costRows("one host", 0)...),
		measure: func(ctx context.Context, rows []Row) error {
			h, d, err := t.here(ctx)
			if err != nil {
				return err
			}
			c := costing{Table: t, route: h.loop(), daemons: []*daemon{d}, messages: [2][2]int{{200000, 50000}, {1000000, 200000}}}
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
			w, err := t.Lab.Wire(ctx, 9000)
			if err != nil {
				return err
			}
			defer w.Close()
			c := costing{Table: t, route: w.Route(), daemons: w.daemons, messages: [2][2]int{{30000, 20000}, {500000, 200000}}}
			return c.measure(ctx, rows, false)
		},
	}
}

// costRows are the rows of a place: of every ware and manner what programs and daemons
// were charged with, and what the whole machine did. aim is for GiBs.
func costRows(place string, aim float64) []Row {
	var rows []Row
	for i, w := range wares {
		for _, m := range w.manners {
			for _, whose := range []string{"", ", whole machine"} {
				row := Row{
					What:    "processor time " + w.what + ", " + m.name + ", " + place + whose + ", against TCP",
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

// A costing measures the rows of a place.
type costing struct {
	*Table
	route    Route
	daemons  []*daemon
	messages [2][2]int // that are moved, of every ware in every manner
	// background is how busy the machine is when nothing is measured, looked at every round.
	background float64
}

// A purchase is something whose price is measured: per unit, as charged and of the machine.
type purchase struct {
	name    string
	price   func(context.Context) (spending, error)
	series  [2]Series
	skipped bool
}

// measure prices everything in turn, round after round.
func (c *costing) measure(ctx context.Context, rows []Row, all bool) error {
	var list []*purchase
	for i, w := range wares {
		tcp := c.purchase(strings.Join(append([]string{"iperf3"}, w.options...), " "), w, c.iperf3(w))
		tcp.skipped = c.oursOnly
		for j, m := range w.manners {
			at := i*4 + j*2
			ours := c.purchase(strings.Join(append([]string{m.tool, "-s", fmt.Sprint(w.size)}, m.options...), " "), w, c.perftest(w, m, c.messages[i][j]))
			ours.skipped = !c.want(rows[at:at+2]...) && !(all && at == 0)
			list = append(list, ours)
		}
		tcp.skipped = tcp.skipped || !c.want(rows[i*4:i*4+4]...)
		list = append(list, tcp)
	}
	err := c.rounds(ctx, list)
	for i, w := range wares {
		mine := list[3*i : 3*i+3]
		for j := range w.manners {
			for k := range 2 {
				rows[i*4+j*2+k].fill(mine[j].series[k], mine[2].series[k])
			}
		}
	}
	return err
}

func (c *costing) purchase(name string, w ware, price func(context.Context) (spending, error)) *purchase {
	p := &purchase{name: name, price: price}
	for k := range p.series {
		p.series[k] = Series{Name: name, Unit: w.unit}
	}
	return p
}

// rounds prices everything in turn. A tool that fails says so in its series.
func (c *costing) rounds(ctx context.Context, list []*purchase) error {
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
			if len(p.series[0].Failures) >= patience {
				continue
			}
			fmt.Fprintf(c.Progress, "  round %d of %d: processor time of %s ", round+1, c.Rounds, p.name)
			s, err := p.price(ctx)
			switch {
			case ctx.Err() != nil:
				fmt.Fprintln(c.Progress)
				return errInterrupted
			case err != nil:
				fmt.Fprintln(c.Progress, "failed:", err)
				p.series[0].Failures = append(p.series[0].Failures, err.Error())
				p.series[1].Failures = append(p.series[1].Failures, err.Error())
			default:
				fmt.Fprintf(c.Progress, "%s, whole machine %s\n", Quantity(s.processes, p.series[0].Unit), Quantity(s.machine, p.series[1].Unit))
				p.series[0].add(Reading{Value: s.processes})
				p.series[1].add(Reading{Value: s.machine})
			}
		}
	}
	return nil
}

// perftest prices a unit. What starting the tool costs is taken out: it is run with few
// messages and with many.
func (c *costing) perftest(w ware, m manner, many int) func(context.Context) (spending, error) {
	const few = 1000
	run := func(ctx context.Context, messages int) (spending, error) {
		return spent(ctx, c.background, c.daemons, func(ctx context.Context) error {
			_, err := runBandwidth(ctx, c.route, device, m.tool, w.size, messages, m.options...)
			return err
		})
	}
	return func(ctx context.Context) (spending, error) {
		start, err := run(ctx, few)
		if err != nil {
			return spending{}, err
		}
		whole, err := run(ctx, many)
		return whole.minus(start).per(float64(many-few) / w.quantity), err
	}
}

// iperf3 prices the same over TCP. Starting it costs some milliseconds of processor time,
// which are little beside a second.
func (c *costing) iperf3(w ware) func(context.Context) (spending, error) {
	return func(ctx context.Context) (spending, error) {
		var moved uint64
		s, err := spent(ctx, c.background, nil, func(ctx context.Context) (err error) {
			_, moved, err = runIperf3(ctx, c.route, plain, w.options...)
			return err
		})
		if err != nil {
			return spending{}, err
		}
		return s.per(float64(moved) / float64(w.size) / w.quantity), nil
	}
}

// per is what a unit cost, if so many did.
func (s spending) per(units float64) spending {
	return spending{s.processes / units, s.machine / units}
}
