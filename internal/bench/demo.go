package bench

import (
	"context"
	"fmt"
	"io"
	"strings"
	"text/tabwriter"
)

// A Demo shows the idea to somebody who has never seen it: unmodified programs find
// a device, and it is faster than TCP on the same machine.
type Demo struct {
	Lab      *Lab
	Out      io.Writer
	Progress io.Writer
	Rounds   int
	Colour   bool
	As       string // who runs the programs
}

// comparison is a line of the demo's table.
type comparison struct {
	what       string
	ours, base int // probes
	lower      bool
}

// Run runs the demo.
func (d *Demo) Run(ctx context.Context) error {
	l := d.Lab
	fmt.Fprintf(d.Out, "vrdma: RDMA on a machine without RDMA (%s).\n", ThisMachine())
	fmt.Fprintf(d.Out, "Unmodified programs from the distribution, run as %s, through a daemon in user space.\n\n", d.As)
	info, err := l.Run(ctx, l.Here.Under("ibv_devinfo")...)
	if err != nil {
		return err
	}
	fmt.Fprintf(d.Out, "$ vrdma run -- ibv_devinfo\n%s\n", indent(info))

	r := l.Here.loop()
	probes := []Probe{
		0: r.latency("ib_write_lat", latencySize, 5000),
		1: r.tcp("tcp_lat", "latency", "s", latencySize),
		2: r.bandwidth("ib_write_bw", bulkSize, 10000),
		3: r.tcp("tcp_bw", "bw", "B/s", bulkSize),
		4: r.bandwidth("ib_send_bw", bulkSize, 10000),
		5: r.messages("ib_write_bw", smallMessage, 300000),
		6: r.tcp("tcp_bw", "msg_rate", "/s", smallMessage),
		7: r.messages("ib_send_bw", smallMessage, 300000),
	}
	fmt.Fprintf(d.Progress, "Measuring between two processes, RDMA and TCP in turn:\n")
	series, err := Rounds(ctx, d.Progress, d.Rounds, probes)
	if err != nil {
		return err
	}
	return d.table(series, []comparison{
		{"latency, 64 B, RDMA write", 0, 1, true},
		{"bandwidth, 64 KiB, RDMA write", 2, 3, false},
		{"bandwidth, 64 KiB, send/receive", 4, 3, false},
		{"messages a second, 8 B, RDMA write", 5, 6, false},
		{"messages a second, 8 B, send/receive", 7, 6, false},
	})
}

// table prints the comparisons, medians of all rounds.
func (d *Demo) table(series []Series, lines []comparison) error {
	fmt.Fprintf(d.Out, "\nTwo processes on this machine; medians, rounds: %d.\n\n", d.Rounds)
	t := tabwriter.NewWriter(d.Out, 0, 0, 2, ' ', 0)
	fmt.Fprintln(t, "\tRDMA through vrdma\tTCP on loopback\t\tmeasured with")
	fmt.Fprintln(t, "\t------------------\t---------------\t\t-------------")
	for _, line := range lines {
		ours, base := &series[line.ours], &series[line.base]
		verdict, good := judge(ours.Median(), base.Median(), line.lower)
		fmt.Fprintf(t, "%s\t%s\t%s\t%s\t%s, %s\n", line.what, Quantity(ours.Median(), ours.Unit), Quantity(base.Median(), base.Unit),
			d.paint(verdict, good), tool(ours.Name), tool(base.Name))
	}
	return t.Flush()
}

// judge puts the ratio into words.
func judge(ours, base float64, lower bool) (verdict string, good bool) {
	r := ratio(ours, base)
	more, less := "%.1f x as much", "%.1f x less"
	if lower {
		r, more, less = ratio(base, ours), "%.1f x faster", "%.1f x slower"
	}
	if r >= 1 {
		return fmt.Sprintf(more, r), true
	}
	return fmt.Sprintf(less, 1/r), false
}

// paint colours text on a terminal; the codes are equally long, so that columns
// stay straight.
func (d *Demo) paint(text string, good bool) string {
	switch {
	case !d.Colour:
		return text
	case good:
		return "\x1b[32m" + text + "\x1b[0m"
	}
	return "\x1b[33m" + text + "\x1b[0m"
}

// tool is the program and test of a probe's name, without sizes.
func tool(name string) string {
	words := strings.Fields(name)
	if words[0] == "qperf" {
		return "qperf " + words[len(words)-1]
	}
	return words[0]
}

// indent sets a program's output off from ours.
func indent(text string) string {
	return "    " + strings.ReplaceAll(strings.TrimRight(text, "\n"), "\n", "\n    ")
}
