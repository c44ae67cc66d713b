package report

import (
	"strings"
	"testing"

	"vrdma.dev/vrdma/internal/instrument/experiment"
)

// TestRemarks: a remark is about two points that differ in one parameter.
func TestRemarks(t *testing.T) {
	point := func(v float64, change func(*Point)) Point {
		p := Point{Cell: experiment.Cell{Setting: experiment.Hosts, Transport: experiment.Verbs, Tool: "ib_write_bw", Size: 65536, Pairs: 1, Wait: experiment.Poll},
			Summary: experiment.Summary{N: 5, Median: v, Low: v * 0.99, High: v * 1.01}}
		change(&p)
		return p
	}
	f := Figure{Metric: experiment.Bandwidth, Lines: []Curve{{Points: []Point{
		point(94.4, func(p *Point) { p.Cell.PathMTU, p.Cell.Rate = 1024, "1gbit" }),
		point(100, func(p *Point) { p.Cell.PathMTU, p.Cell.Rate = 4096, "1gbit" }),
		point(500, func(p *Point) { p.Cell.PathMTU = 1024 }),
		point(900, func(p *Point) { p.Cell.PathMTU = 4096 }),
		point(800, func(*Point) {}),
		point(400, func(p *Point) { p.Cell.Wait = experiment.Event }),
		point(1900, func(p *Point) { p.Cell.Pairs, p.Claimed = 4, 2350 }),
	}}}}
	got := Remarks(f)
	for i, want := range []string{"a ratio of 0.944 on a link of 1gbit. Headers alone give 0.944", "a ratio of 0.556 without a limit", "polling is 2.00 times better", "4 pairs, two hosts: perftest's lines add up to"} {
		if i >= len(got) || !strings.Contains(got[i], want) {
			t.Errorf("remark %d of %q: want %q", i, got, want)
		}
	}
	if len(got) != 4 {
		t.Errorf("%d remarks, want 4: %q", len(got), got)
	}
	slow := Figure{Metric: experiment.Rate, Lines: []Curve{{Points: []Point{point(100, func(*Point) {}), point(25, func(p *Point) { p.Cell.Share = 50 })}}}}
	if got := Remarks(slow); len(got) != 1 || !strings.Contains(got[0], "a server with 50 % of a processor: 0.025 k/s instead of 0.1 k/s, a ratio of 0.25.") {
		t.Errorf("a slow processor: %q", got)
	}
	if f.Metric = experiment.CPU; Remarks(f) != nil {
		t.Error("processor time has remarks")
	}
}

// TestCases: a case has the latency of its smallest message and the bandwidth of its largest, or a reason.
func TestCases(t *testing.T) {
	point := func(size experiment.Size, v float64) Point {
		return Point{Cell: experiment.Cell{Transport: experiment.Vhost, Tool: "NPtcp", Size: size, Pairs: 1}, Summary: experiment.Summary{N: 1, Median: v}}
	}
	guests := &experiment.Experiment{Name: "mikelangelo-guests"}
	figures := []Figure{
		{Experiment: guests, Metric: experiment.Latency, Lines: []Curve{{Points: []Point{point(64, 1e-4), point(1<<20, 1e-2)}}}},
		{Experiment: guests, Metric: experiment.Bandwidth, Lines: []Curve{{Points: []Point{point(64, 1e6), point(1<<20, 1e9)}}},
			Missing: []Point{{Cell: experiment.Cell{Transport: experiment.OVS, Tool: "NPtcp"}, Failed: "ovs-vswitchd-dpdk: no memory"}}},
	}
	for _, c := range []struct{ name, transport, metric, want string }{
		{"mikelangelo-guests", experiment.Vhost, experiment.Latency, "100 µs (64 B)"},
		{"mikelangelo-guests", experiment.Vhost, experiment.Bandwidth, "8 Gb/s (1 MiB)"},
		{"mikelangelo-guests", experiment.OVS, experiment.Bandwidth, "ovs-vswitchd-dpdk: no memory"},
		{"mikelangelo-guests", experiment.TCP, experiment.Latency, "not in this run"},
	} {
		if got := caseCell(figures, c.name, c.transport, "NPtcp", c.metric); got.text != c.want {
			t.Errorf("%s %s %s: %v, want %q", c.name, c.transport, c.metric, got, c.want)
		}
	}
	for reason, want := range map[string]string{
		"mpirun " + strings.Repeat("--mca x y ", 40) + ": took longer than 1m30s:\nmore":                                             "mpirun: took longer than 1m30s: more",
		"NPtcp -P 21731 -l 64 -h 10.99.0.2: exit status 246":                                                                         "NPtcp: exit status 246",
		"NPtcp -P 21731 -l 64: exit status 246 (its client could not connect, no route to host):\nClient: Cannot Connect! errno=113": "NPtcp: exit status 246 (its client could not connect, no route to host): Client: Cannot Connect! errno=113",
		"/usr/bin/sockperf tp -i 10.0.0.1: exit status 1:\na\nno route\nits server said:\nb":                                         "sockperf: exit status 1: no route",
		"needs another machine: --peer":                        "needs another machine: --peer",
		"8 guests do not fit into memory: 1 GiB is free\nmore": "8 guests do not fit into memory: 1 GiB is free",
		"": "",
	} {
		if got := short(reason); got != want {
			t.Errorf("short(%q): %q, want %q", reason, got, want)
		}
	}
}
