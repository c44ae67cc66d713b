package report

import (
	"strings"
	"testing"

	"vrdma.dev/vrdma/internal/instrument/experiment"
)

// TestGroups: each of the ten groups has a value or a reason, and ratios are beside the published ones.
func TestGroups(t *testing.T) {
	point := func(setting, transport string, perSide, pairs int, size experiment.Size, seconds float64) Point {
		return Point{Cell: experiment.Cell{Setting: setting, Transport: transport, Tool: "mpi_transfer", Size: size, Pairs: pairs, PerSide: perSide},
			Summary: experiment.Summary{N: 1, Median: seconds, Low: seconds, High: seconds}}
	}
	const tcp, verbs = experiment.TCP, experiment.Verbs
	figures := []Figure{{
		Experiment: &experiment.Experiment{Name: "progress-transfers"}, Metric: experiment.Time,
		Lines: []Curve{{Points: []Point{
			point(experiment.Hosts, tcp, 0, 1, 1e9, 1), point(experiment.Hosts, verbs, 0, 1, 1e9, 0.5),
			point(experiment.Containers, verbs, 4, 4, 1e9, 2), point(experiment.VMs, verbs, 2, 2, 1<<20, 3),
		}}},
		Missing: []Point{
			{Cell: point(experiment.VMs, verbs, 4, 4, 1<<20, 0).Cell, Failed: "8 guests need 6 GiB of memory"},
			{Cell: point(experiment.VMs, tcp, 4, 4, 1<<20, 0).Cell, Failed: "8 guests need 6 GiB of memory"},
		},
	}}
	var b strings.Builder
	for _, table := range tablesOf("progress", figures) {
		table.markdown(&b)
	}
	for _, want := range []string{
		"| 1: host to host, TCP | 1 s | not in this run | 1.1 s |",
		"| 7: four VMs a side, TCP | not planned: each of the four has a transfer | 8 guests need 6 GiB of memory | never measured |",
		"| 8: four VMs a side, RDMA | not planned: each of the four has a transfer | four: 8 guests need 6 GiB of memory; two a side: 3 s for 1 MiB |",
		"| 10: four containers a side, RDMA | not planned: each of the four has a transfer | 2 s | never measured |",
		"| host to host, TCP | host to host, RDMA | 1 | 2.00 | 6.34 |",
	} {
		if !strings.Contains(b.String(), want) {
			t.Errorf("no line %q in\n%s", want, b.String())
		}
	}
	for line := range strings.Lines(b.String()) {
		if strings.Contains(line, "|  |") {
			t.Errorf("a cell is empty: %s", line)
		}
	}
}

// TestCosts: core-seconds per GiB are beside the published ones, also in the Markdown report.
func TestCosts(t *testing.T) {
	e := &experiment.Experiment{Name: "thesis-bandwidth", Spec: experiment.Spec{Suite: "thesis"}}
	p := Point{Cell: experiment.Cell{Setting: experiment.Host, Transport: experiment.Verbs, Tool: "ib_write_bw", Size: 64 << 10, Pairs: 1},
		Summary: experiment.Summary{N: 1, Median: 1e9}, CPU: map[string]float64{"client": 0.1, "server": 0.01, "daemon": 0.02, "rest": 0.2}}
	figures := []Figure{{Experiment: e, Metric: experiment.Bandwidth, Lines: []Curve{{Name: "a", Points: []Point{p}}}}}
	var b strings.Builder
	if err := Markdown(&b, &experiment.Results{}, figures); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"| vrdma, one host | not measured | 0.33 (0.13) | not measured |", "| SoftRoCE (published, T-SR-BW and T-SR-CPU) | 3.52 | 1.82 | 2.42 |", "| FreeFlow (published, T-FF-BW and T-FF-CPU) | 0.67 | 0.49 | 0.52 |", "vrdma, one host not measured / 0.33 (0.13) / not measured"} {
		if !strings.Contains(b.String(), want) {
			t.Errorf("no %q in\n%s", want, b.String())
		}
	}
}

// TestVerdicts: the factors against TCP, or against the kernel's rxe where there is no TCP.
func TestVerdicts(t *testing.T) {
	point := func(transport string, size experiment.Size, v float64) Point {
		return Point{Cell: experiment.Cell{Setting: experiment.GuestRXE, Transport: transport, Tool: "ib_write_bw", Size: size, Pairs: 1, Wait: experiment.Poll},
			Summary: experiment.Summary{N: 3, Median: v, Low: v, High: v}}
	}
	f := Figure{Experiment: &experiment.Experiment{Spec: experiment.Spec{Title: "Bandwidth of a guest"}}, Metric: experiment.Bandwidth, Lines: []Curve{{Points: []Point{
		point(experiment.Kernel, 64, 100), point(experiment.Verbs, 64, 200), point(experiment.Kernel, 4096, 100), point(experiment.Verbs, 4096, 800),
	}}}}
	want := "Bandwidth of a guest, against the kernel's rxe: one guest, verbs, polls: 2.0 x to 8.0 x, geometric mean 4.0 x (2 values)."
	twice := f // by another metric, with the same factors
	twice.Metric = experiment.Rate
	if got := verdicts([]Figure{f, twice}); len(got) != 1 || got[0] != want {
		t.Errorf("got %q, want %q", got, want)
	}
	// A limited server is not compared with an unlimited one, and sleeping programs are not combined with polling ones in one
	// sentence.
	other := point(experiment.Verbs, 64, 900)
	other.Cell.Share = 50
	events, kernel := point(experiment.Verbs, 64, 300), point(experiment.Kernel, 64, 100)
	events.Cell.Wait, kernel.Cell.Wait = experiment.Event, experiment.Event
	f.Lines[0].Points = append(f.Lines[0].Points, other, events, kernel)
	if got := verdicts([]Figure{f}); len(got) != 1 || got[0] != strings.TrimSuffix(want, ".")+"; one guest, verbs, sleeps: 3.0 x." {
		t.Errorf("got %q", got)
	}
	for i := range f.Lines[0].Points {
		f.Lines[0].Points[i].Cell.Setting = experiment.Host
	}
	if got := verdicts([]Figure{f}); !strings.Contains(got[0], "against the kernel's device:") {
		t.Errorf("a device that --device named: %q", got[0])
	}
	for _, c := range []struct {
		list []Ratio
		want string
	}{
		{[]Ratio{{Factor: 0.5, Sure: true}}, "0.50 x"},
		{[]Ratio{{Factor: 16.1, Sure: true}, {Factor: 15.9, Sure: true}}, "16 x (2 values)"},
		{[]Ratio{{Factor: 0.95}}, "no difference beyond the spread of the rounds (1 value)"},
		{[]Ratio{{Factor: 0.95}, {Factor: 8, Sure: true}}, "0.95 x to 8.0 x, geometric mean 2.8 x (2 values, of which 1 within the spread)"},
	} {
		if got := span(c.list); got != c.want {
			t.Errorf("%v: %q, want %q", c.list, got, c.want)
		}
	}
	far, guest := experiment.Cell{Setting: experiment.Remote}, experiment.Cell{Setting: experiment.VMs, Transport: experiment.OVS}
	tap := experiment.Cell{Setting: experiment.VMs, Transport: experiment.TCP}
	f.Missing = []Point{{Cell: far, Failed: "needs another machine: --peer"}, {Cell: guest, Failed: "no QEMU"}, {Cell: guest, Failed: "no QEMU"}, {Cell: tap, Failed: "no QEMU"}}
	if got := strings.Join(missing([]Figure{f}), " "); got != "Two guests (ovs-dpdk, tcp), 3 combinations: no QEMU. Two machines, 1 combination: needs another machine: --peer." {
		t.Errorf("missing: %q", got)
	}
}

// TestPercentile: a 99.9th percentile needs ten thousand messages, a 99th a thousand.
func TestPercentile(t *testing.T) {
	c := experiment.Cell{Setting: experiment.Host, Transport: experiment.Verbs, Tool: "ib_send_lat", Size: 64, Pairs: 1}
	tool, _ := experiment.FindTool(c.Tool)
	for _, test := range []struct {
		samples   int64
		p99, p999 float64
	}{{10000, 2e-6, 9e-6}, {9999, 2e-6, 0}, {200, 0, 0}} {
		rec := experiment.Record{Experiment: "e", Cell: c}
		rec.Values, rec.Samples = map[string]float64{experiment.Latency: 1e-6, "p99": 2e-6, "p999": 9e-6}, test.samples
		p := point(&experiment.Results{Records: []experiment.Record{rec}}, "e", c, tool, experiment.Latency)
		if p.P999 != test.p999 || p.P99 != test.p99 {
			t.Errorf("%d messages: p99 is %v, p99.9 %v; want %v, %v", test.samples, p.P99, p.P999, test.p99, test.p999)
		}
	}
}
