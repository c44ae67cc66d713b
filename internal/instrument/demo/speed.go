package demo

import (
	"context"
	"fmt"
	"io"
	"slices"
	"strings"
	"text/tabwriter"

	"vrdma.dev/vrdma/internal/instrument/experiment"
	"vrdma.dev/vrdma/internal/instrument/probe"
	"vrdma.dev/vrdma/internal/instrument/speedtable"
	"vrdma.dev/vrdma/internal/instrument/testbed"
)

// A Speed shows that unmodified programs find a device, on one host and on two, and compares RDMA with TCP.
type Speed struct {
	Lab      *testbed.Lab
	Out      io.Writer
	Progress io.Writer
	Rounds   int
	Colour   bool
	As       string // the user that runs the programs
}

// Message sizes of the comparisons.
const (
	smallMessage = 8
	latencySize  = 64
	bulkSize     = 64 << 10
)

// A comparison is a line of the demo's table.
type comparison struct {
	what       string
	ours, base int // indices of probes
	lower      bool
}

// Run runs the demo: one host, then two.
func (d *Speed) Run(ctx context.Context) error {
	fmt.Fprintf(d.Out, "vrdma: RDMA on a machine without RDMA (%s).\n", speedtable.ThisMachine())
	fmt.Fprintf(d.Out, "Unmodified programs from the distribution, run as %s, through a daemon in user space.\n\n", d.As)
	if err := d.oneHost(ctx); err != nil {
		return err
	}
	w, err := d.Lab.NewHostPair(ctx, 9000)
	switch {
	case ctx.Err() != nil:
		return testbed.ErrInterrupted
	case err != nil:
		fmt.Fprintf(d.Out, "\nTwo hosts are not shown: %v\n", err)
		return nil
	}
	defer w.Close()
	if err := d.twoHosts(ctx, w); err != nil {
		return err
	}
	fmt.Fprint(d.Out, next)
	return nil
}

// next says where to continue after the demo.
const next = `
Next:
  bin/vrdma run -- PROGRAM              any RDMA program with this device; README.md has the commands
  bin/vrdma bench run quick             measure more, and bin/vrdma report makes a page of it: docs/how-to/benchmark.md
  docs/how-to/containers.md, docs/how-to/virtual-machines.md    the same in containers and virtual machines
`

// oneHost shows the device and compares two processes with TCP.
func (d *Speed) oneHost(ctx context.Context) error {
	h := d.Lab.Here
	info, err := d.Lab.Run(ctx, h.Under("ibv_devinfo")...)
	if err != nil {
		return err
	}
	fmt.Fprintf(d.Out, "$ vrdma run -- ibv_devinfo\n%s\n", indent(info))

	r := h.Loopback()
	fmt.Fprintf(d.Progress, "Measuring between two processes, RDMA and TCP in turn:\n")
	series, err := probe.Rounds(ctx, d.Progress, d.Rounds, []probe.Probe{
		0: probe.Latency(r, "ib_write_lat", latencySize, 5000),
		1: probe.Qperf(r, "tcp_lat", "latency", "s", latencySize),
		2: probe.Bandwidth(r, "ib_write_bw", bulkSize, 10000),
		3: probe.Qperf(r, "tcp_bw", "bw", "B/s", bulkSize),
		4: probe.Bandwidth(r, "ib_send_bw", bulkSize, 10000),
		5: probe.MessageRate(r, "ib_write_bw", smallMessage, 300000),
		6: probe.Qperf(r, "tcp_bw", "msg_rate", "/s", smallMessage),
		7: probe.MessageRate(r, "ib_send_bw", smallMessage, 300000),
	})
	if err != nil {
		return err
	}
	fmt.Fprintf(d.Out, "\nTwo processes on this machine; medians, rounds: %d.\n\n", d.Rounds)
	return d.table("TCP on loopback", series, []comparison{
		{"latency, 64 B, RDMA write", 0, 1, true},
		{"bandwidth, 64 KiB, RDMA write", 2, 3, false},
		{"bandwidth, 64 KiB, send/receive", 4, 3, false},
		{"messages a second, 8 B, RDMA write", 5, 6, false},
		{"messages a second, 8 B, send/receive", 7, 6, false},
	})
}

// twoHosts shows a connection between two hosts and compares it with TCP.
func (d *Speed) twoHosts(ctx context.Context, w *testbed.HostPair) error {
	r := w.Route()
	fmt.Fprintf(d.Out, "\nTwo hosts: network namespaces with a virtual cable between them, MTU 9000, and a daemon in each.\n\n")
	server, client := []string{"rping", "-s", "-C", "3"}, []string{"rping", "-c", "-v", "-C", "3", "-a", r.Server.IP}
	const port = 7174 // rping's default
	pings, err := r.Pair(ctx, testbed.WithCM, port, server, client)
	if err != nil {
		return err
	}
	fmt.Fprintf(d.Out, "%s$ vrdma run -- %s\n%s$ vrdma run -- %s\n%s\n", r.Server.IP, strings.Join(server, " "), r.Client.IP, strings.Join(client, " "), indent(pings))

	fmt.Fprintf(d.Progress, "Measuring between two hosts, RoCEv2 and TCP in turn:\n")
	series, err := probe.Rounds(ctx, d.Progress, d.Rounds, []probe.Probe{
		0: probe.Latency(r, "ib_send_lat", latencySize, 5000),
		1: probe.Qperf(r, "tcp_lat", "latency", "s", latencySize),
		2: probe.Bandwidth(r, "ib_write_bw", bulkSize, 10000),
		3: probe.Qperf(r, "tcp_bw", "bw", "B/s", bulkSize),
	})
	if err != nil {
		return err
	}
	fmt.Fprintf(d.Out, "\nA process on each; medians, rounds: %d.\n\n", d.Rounds)
	return d.table("TCP on the same cable", series, []comparison{
		{"latency, 64 B, send/receive", 0, 1, true},
		{"bandwidth, 64 KiB, RDMA write", 2, 3, false},
	})
}

// table prints the comparisons and the tools that failed.
func (d *Speed) table(against string, series []speedtable.Series, lines []comparison) error {
	t := tabwriter.NewWriter(d.Out, 0, 0, 2, ' ', 0)
	fmt.Fprintf(t, "\tRDMA through vrdma\t%s\t\tmeasured with\n", against)
	fmt.Fprintf(t, "\t------------------\t%s\t\t-------------\n", strings.Repeat("-", len(against)))
	var failures, apart []string
	for _, line := range lines {
		ours, base := &series[line.ours], &series[line.base]
		verdict, good := "not measured", false
		if len(ours.Values) > 0 && len(base.Values) > 0 {
			verdict, good = judge(ours.Median(), base.Median(), line.lower)
		}
		fmt.Fprintf(t, "%s\t%s\t%s\t%s\t%s, %s\n", line.what, d.value(ours), d.value(base), d.paint(verdict, good), tool(ours.Name), tool(base.Name))
		failures = append(append(failures, ours.Failures...), base.Failures...)
		for _, one := range []*speedtable.Series{ours, base} {
			if by := factor(one); by > roundsAgree {
				apart = append(apart, fmt.Sprintf("The rounds of %s differ by a factor of %.1f.", one.Name, by))
			}
		}
	}
	if err := t.Flush(); err != nil {
		return err
	}
	slices.Sort(failures)
	for _, failure := range slices.Compact(failures) {
		fmt.Fprintf(d.Out, "\nfailed: %s\n", failure)
	}
	if slices.Sort(apart); len(apart) > 0 {
		fmt.Fprintf(d.Out, "\n%s\nOther programs use the processors, so these medians mean little: run it again when the machine is quiet.\n",
			strings.Join(slices.Compact(apart), "\n"))
	}
	return nil
}

// roundsAgree is the factor by which rounds of one measurement may differ on a quiet machine with few processors.
const roundsAgree = 2

// factor is the largest value of a series over its smallest; 0 without values.
func factor(s *speedtable.Series) float64 {
	if len(s.Values) == 0 {
		return 0
	}
	return speedtable.Ratio(slices.Max(s.Values), slices.Min(s.Values))
}

// value is the median of a series, or that there is none.
func (d *Speed) value(s *speedtable.Series) string {
	if len(s.Values) == 0 {
		return "failed"
	}
	return experiment.Amount(s.Median(), s.Unit)
}

// judge describes the ratio.
func judge(ours, base float64, lower bool) (verdict string, good bool) {
	r := speedtable.Ratio(ours, base)
	more, less := "%.1f x as much", "%.1f x less"
	if lower {
		r, more, less = speedtable.Ratio(base, ours), "%.1f x faster", "%.1f x slower"
	}
	if r >= 1 {
		return fmt.Sprintf(more, r), true
	}
	return fmt.Sprintf(less, 1/r), false
}

// paint colours text on a terminal. Both colour codes have the same length, so that columns stay aligned.
func (d *Speed) paint(text string, good bool) string {
	switch {
	case !d.Colour:
		return text
	case good:
		return "\x1b[32m" + text + "\x1b[0m"
	}
	return "\x1b[33m" + text + "\x1b[0m"
}

// tool is the program and the test in a probe's name, without sizes.
func tool(name string) string {
	words := strings.Fields(name)
	if words[0] == "qperf" {
		return "qperf " + words[len(words)-1]
	}
	return words[0]
}

// indent indents a program's output.
func indent(text string) string {
	return "    " + strings.ReplaceAll(strings.TrimRight(text, "\n"), "\n", "\n    ")
}
