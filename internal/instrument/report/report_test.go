package report

import (
	"bytes"
	"encoding/csv"
	"encoding/xml"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/net/html"

	"vrdma.dev/vrdma/internal/instrument/experiment"
	"vrdma.dev/vrdma/internal/instrument/published"
)

const document = `apiVersion: vrdma.io/v1
kind: Experiment
metadata: {name: lat}
spec:
  suite: <script>alert(1)</script>
  title: Latency & more
  like: T-SR-LAT
  settings: [host, vms]
  transports: [tcp, verbs]
  tools: [ib_send_lat, tcp_lat]
  sizes: [64, 4KiB]
  rounds: 3
`

// results of a run in which verbs took 2 µs and TCP 10 µs, and guests failed.
func results(factor float64) *experiment.Results {
	r := &experiment.Results{Header: experiment.Header{Version: experiment.Version, Experiments: []string{document}, Machine: experiment.Machine{Processor: "Z80", Processors: 2}}}
	list, err := experiment.Parse("d", []byte(document))
	if err != nil {
		panic(err)
	}
	for round := 1; round <= 3; round++ {
		for _, c := range list[0].Cells() {
			rec := experiment.Record{Experiment: "lat", Cell: c, Round: round}
			switch {
			case c.Setting == experiment.VMs:
				rec.Failed = "setting vms cannot be measured by this version"
			case c.Transport == experiment.TCP:
				rec.Values = map[string]float64{experiment.Latency: 10e-6 * (1 + float64(round)/100)}
				rec.Proof = "the device's counters stood still"
			default:
				rec.Values = map[string]float64{experiment.Latency: factor * 2e-6 * (1 + float64(round)/100), "p99": 3e-6}
				rec.CPU, rec.Samples, rec.MTU = map[string]float64{"client": 0.5, "daemon": 0.25}, 10000, 4096
				rec.Proof = "the device's counters: 1 MiB sent"
			}
			r.Records = append(r.Records, rec)
		}
	}
	return r
}

func figures(t *testing.T, r *experiment.Results) []Figure {
	t.Helper()
	f, err := Gather(r)
	if err != nil {
		t.Fatal(err)
	}
	return f
}

func TestGather(t *testing.T) {
	list := figures(t, results(1))
	if len(list) != 1 {
		t.Fatalf("%d figures, want one", len(list))
	}
	f := list[0]
	if f.By != "size" || len(f.Lines) != 2 || len(f.Missing) != 4 {
		t.Errorf("by %q, %d lines, %d missing", f.By, len(f.Lines), len(f.Missing))
	}
	for _, p := range f.Missing {
		if !strings.Contains(p.Failed, "cannot be measured by this version") {
			t.Errorf("%v does not say why", p.Cell)
		}
	}
	if len(f.Cited) != 0 { // they are of two hosts
		t.Errorf("published values stand beside one host: %v", f.Cited)
	}
	ratios := Ratios(f)
	if len(ratios) != 2 || ratios[0].Factor < 4.9 || ratios[0].Factor > 5.1 || !ratios[0].Sure {
		t.Errorf("ratios %+v", ratios)
	}
	p := f.Lines[1].Points[0]
	if got := p.CPU["client"]; got < 49.9 || got > 50.1 { // half a second for ten thousand messages
		t.Errorf("%v seconds per million messages, want 50", got)
	}
}

func TestSentences(t *testing.T) {
	text := strings.Join(Sentences(figures(t, results(1))[0]), "\n")
	if !strings.Contains(text, "ib_send_lat (one host) of 64 B, which polls, has 2.04 µs, TCP that sleeps 10.2 µs: 5.00 times better.") {
		t.Errorf("in words:\n%s", text)
	}
	if text := strings.Join(Sentences(figures(t, results(10))[0]), "\n"); !strings.Contains(text, "2.00 times worse") {
		t.Errorf("worse, in words:\n%s", text)
	}
	if text := strings.Join(Sentences(figures(t, results(5))[0]), "\n"); !strings.Contains(text, "within the spread") {
		t.Errorf("alike, in words:\n%s", text)
	}
	wrong := results(1)
	for i := range wrong.Records {
		wrong.Records[i].Proof = "WRONG: no byte went through the device"
	}
	if text := fmt.Sprint(Summary(wrong, figures(t, wrong))); !strings.Contains(text, "The counters contradict") {
		t.Errorf("a contradiction is not told of:\n%s", text)
	}
}

// A bandwidth above its limit is marked, with the kind of limit.
func TestYardstick(t *testing.T) {
	for _, test := range []struct {
		value float64
		rate  string
		want  string
	}{
		{9e9, "", "None of 1 bandwidths is above its yardstick"},
		{11e9, "", "Above a copy in memory measured beside it: "},
		{11e9, "1gbit", "Above what the link's rate allows: "},
	} {
		p := Point{Cell: experiment.Cell{Rate: test.rate}, Summary: experiment.Summary{Median: test.value}, Limit: 10e9}
		text := strings.Join(asides(&experiment.Results{}, []Figure{{Metric: experiment.Bandwidth, Lines: []Curve{{Points: []Point{p}}}}}), "\n")
		if !strings.HasPrefix(text, test.want) || strings.Contains(text, "wrong") {
			t.Errorf("%v: %q, want %q", test.value, text, test.want)
		}
		if ringed := p.oddity(experiment.Bandwidth) != ""; ringed != (test.value > 10e9) || p.oddity(experiment.Latency) != "" {
			t.Errorf("%v of 10e9: ringed %v", test.value, ringed)
		}
	}
	// The settings are described in one sentence each.
	r := &experiment.Results{}
	for _, was := range []string{"two guests", "8 guests", "two guests"} {
		rec := experiment.Record{Cell: experiment.Cell{Setting: experiment.VMs}}
		rec.Setting = was
		r.Records = append(r.Records, rec)
	}
	if got := asides(r, nil); got[0] != "Setting vms: two guests; 8 guests." {
		t.Errorf("asides: %q", got)
	}
}

// A value of 0, such as no processor time, is drawn on a logarithmic axis.
func TestZero(t *testing.T) {
	point := func(size experiment.Size, v float64) Point {
		return Point{Cell: experiment.Cell{Size: size}, Summary: experiment.Summary{N: 5, Median: v, Low: v, High: v}}
	}
	f := Figure{Experiment: &experiment.Experiment{}, Metric: experiment.CPU, By: "size", Lines: []Curve{{Points: []Point{point(1, 0.001), point(2, 0), point(4, 1)}}}}
	for _, svg := range regexp.MustCompile(`(?s)<svg.*?</svg>`).FindAllString(drawing(t, f)+checkedIn(t), -1) {
		if strings.Contains(svg, "+Inf") || strings.Contains(svg, "-Inf") || strings.Contains(svg, "NaN") {
			t.Errorf("a drawing has what is no number: %.200s", svg)
		}
	}
}

// drawing is a figure as SVG.
func drawing(t *testing.T, f Figure) string {
	var b strings.Builder
	if err := pageTemplate.ExecuteTemplate(&b, "plot", newPlot(f)); err != nil {
		t.Fatal(err)
	}
	return b.String()
}

// checkedIn returns the page of docs/report.
func checkedIn(t *testing.T) string {
	text, err := os.ReadFile("../../../docs/report/report.html")
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// The caption says which parameters differ.
func TestUnlike(t *testing.T) {
	tests := []struct {
		change func(p *Point)
		want   string
	}{
		{func(*Point) {}, ""},
		{func(p *Point) { p.PathMTU = 4096 }, "The path MTUs differ"},
		{func(p *Point) { p.Depth = 1 }, "Depths or inline data differ"},
		{func(p *Point) { p.Inline = "236" }, "Depths or inline data differ"},
		{func(p *Point) { p.Tool.RoundTrip = true }, "Reads are whole round trips"},
	}
	for _, test := range tests {
		p := Point{PathMTU: 1024, Depth: 128, Inline: "0"}
		o := p
		test.change(&o)
		got := caption(Figure{Metric: experiment.Latency, Lines: []Curve{{Points: []Point{p}}, {Points: []Point{o}}}})
		if !strings.HasPrefix(got, test.want) || test.want == "" && !strings.HasPrefix(got, "Medians") {
			t.Errorf("%q, want %q", got, test.want)
		}
	}
}

// The page is complete, loads nothing, and text from files cannot become a script.
func TestHTML(t *testing.T) {
	r := results(1)
	var b bytes.Buffer
	if err := HTML(&b, r, figures(t, r)); err != nil {
		t.Fatal(err)
	}
	scripts, figures, tables := 0, 0, 0
	for z := html.NewTokenizer(&b); ; {
		kind := z.Next()
		if kind == html.ErrorToken {
			if !errors.Is(z.Err(), io.EOF) {
				t.Fatal(z.Err())
			}
			break
		}
		token := z.Token()
		for _, a := range token.Attr {
			if (a.Key == "src" || a.Key == "href") && !strings.HasPrefix(a.Val, "data:") && !strings.HasPrefix(a.Val, "#") {
				t.Errorf("<%s %s=%q> is fetched from elsewhere", token.Data, a.Key, a.Val)
			}
		}
		if kind == html.StartTagToken {
			switch token.Data {
			case "script":
				scripts++
			case "figure":
				figures++
			case "table":
				tables++
			}
		}
	}
	if scripts != 1 || figures != 1 || tables != 2 {
		t.Errorf("%d scripts, %d figures, %d tables; want one each, and the table of published experiments", scripts, figures, tables)
	}
}

func TestText(t *testing.T) {
	r := results(1)
	f := figures(t, r)
	var md, values bytes.Buffer
	if err := Markdown(&md, r, f); err != nil || !strings.Contains(md.String(), "| tcp_lat, tcp, one host | 64 B | 1 | 10.2 µs |") || !strings.Contains(md.String(), "Not measured: ib_send_lat, verbs, vms") {
		t.Errorf("%v:\n%s", err, md.String())
	}
	if err := CSV(&values, f); err != nil {
		t.Fatal(err)
	}
	rows, err := csv.NewReader(&values).ReadAll()
	if err != nil || len(rows) != 1+8 {
		t.Errorf("%d rows: %v", len(rows), err)
	}
	column := func(row []string, name string) string { return row[slices.Index(rows[0], name)] }
	for _, row := range rows[1:] {
		if column(row, "tool") == "tcp_lat" && column(row, "p99") != "" {
			t.Errorf("a percentile that is not there: %q", row)
		}
		if column(row, "per_side") != "1" || column(row, "server_share") != "100" || column(row, "link_rate") != "" || column(row, "depth") != "" || column(row, "cpu_per") != "million" {
			t.Errorf("what else a cell has: %q", row)
		}
	}
}

// TestUnits: the unit of processor time depends on the tool, and a figure of processor time has no column of it.
func TestUnits(t *testing.T) {
	figure := func(metric string, tools ...string) Figure {
		f := Figure{Experiment: &experiment.Experiment{Name: "e"}, Metric: metric, Lines: []Curve{{Name: "l"}}}
		for _, name := range tools {
			tool, _ := experiment.FindTool(name)
			f.Lines[0].Points = append(f.Lines[0].Points, Point{Cell: experiment.Cell{Tool: name, Pairs: 1}, Tool: tool, Summary: experiment.Summary{N: 1, Median: 1}, CPU: map[string]float64{"client": 0.5, "rest": 0.25}})
		}
		return f
	}
	for _, test := range []struct {
		f    Figure
		want string
	}{
		{figure(experiment.Latency, "NPtcp"), "| CPU, s/GiB | rest of the machine |"},
		{figure(experiment.Latency, "ib_send_lat"), "| CPU, s/million | rest of the machine |"},
		{figure(experiment.Rate, "cmtime"), "| CPU, s/million | rest of the machine |"},
		{figure(experiment.Rate, "ib_send_bw"), "| CPU, s/GiB | rest of the machine |"},
		{figure(experiment.Rate, "ib_send_bw", "cmtime"), "| 0.5 s/million | 0.25 s/million |"},
		{figure(experiment.CPU, "ib_send_bw"), "| rounds |\n"},
	} {
		var b strings.Builder
		markdownTable(&b, test.f)
		head := strings.Join(newValuesView(test.f).Head, "|")
		if !strings.Contains(b.String(), test.want) || strings.Contains(head, "|CPU ") != (test.f.Metric != experiment.CPU) {
			t.Errorf("no %q in\n%s", test.want, b.String())
		}
	}
}

func TestCompare(t *testing.T) {
	var b bytes.Buffer
	if err := Compare(&b, results(1), results(1)); err != nil || strings.Count(b.String(), "~ (p=1.000 n=3+3)") != 4 || !strings.Contains(b.String(), "4 of 4 values (100.0 %) have intervals that overlap; the median width") {
		t.Errorf("the same twice: %v\n%s", err, b.String())
	}
	b.Reset()
	// Three rounds cannot show a difference: the smallest probability is 0.1.
	if err := Compare(&b, results(1), results(2)); err != nil || !strings.Contains(b.String(), "~ (p=0.100") {
		t.Errorf("three rounds: %v\n%s", err, b.String())
	}
	many := func(factor float64) *experiment.Results {
		r := results(factor)
		more := results(factor * 1.001)
		r.Records = append(r.Records, more.Records...)
		return r
	}
	b.Reset()
	if err := Compare(&b, many(1), many(2)); err != nil || !strings.Contains(b.String(), "+100.0 % (p=0.002 n=6+6)") || !strings.Contains(b.String(), "2 of 4 values (50.0 %)") {
		t.Errorf("twice as slow: %v\n%s", err, b.String())
	}
	empty := &experiment.Results{Header: experiment.Header{Experiments: []string{document}}}
	if err := Compare(&b, empty, results(1)); err == nil || !strings.Contains(err.Error(), "no cell in common") {
		t.Errorf("nothing in common: %v", err)
	}
}

// Suites with another program, machine or day are listed.
func TestOrigins(t *testing.T) {
	first := experiment.Part{Experiments: []string{document}, Program: "1", Machine: experiment.Machine{Processor: "Z80"}}
	second := first
	if got := origins([]experiment.Part{first, second}); got != "" {
		t.Errorf("alike: %q", got)
	}
	second.Program, second.Machine.Processor, second.Started = "2", "6502", first.Started.AddDate(2025, 0, 0)
	const want = "Not all of it: <script>alert(1)</script>: vrdma 2, 6502 with 0 processors, , 0 GiB of memory, 1 January 2026."
	if got := origins([]experiment.Part{first, second}); got != want {
		t.Errorf("got %q, want %q", got, want)
	}
}

// QEMU has a column only where there are guests. A role that was not counted has no number.
func TestGuestsColumn(t *testing.T) {
	for _, guests := range []bool{false, true} {
		r := results(1)
		for i := range r.Records {
			if guests && r.Records[i].CPU != nil {
				r.Records[i].CPU["qemu"] = 0.125
			}
		}
		f := figures(t, r)
		var page, values bytes.Buffer
		if err := errors.Join(HTML(&page, r, f), CSV(&values, f)); err != nil {
			t.Fatal(err)
		}
		if strings.Contains(page.String(), "<th>qemu</th>") != guests || strings.Contains(values.String(), ",cpu_qemu,") != guests {
			t.Errorf("guests %v:\n%s", guests, values.String())
		}
		if guests && !strings.Contains(values.String(), ",50,,25,12.5,,") {
			t.Errorf("client, daemon and QEMU were counted:\n%s", values.String())
		}
	}
}

// Prototype II: each tool has a row of its own, also where sizes are equal.
func TestCasesByTool(t *testing.T) {
	point := func(tool string, size experiment.Size, v float64) Point {
		return Point{Cell: experiment.Cell{Transport: experiment.Verbs, Tool: tool, Size: size}, Summary: experiment.Summary{N: 3, Median: v}}
	}
	e := &experiment.Experiment{Name: "mikelangelo-guests-verbs"}
	figures := []Figure{
		{Experiment: e, Metric: experiment.Bandwidth, Lines: []Curve{
			{Points: []Point{point("ib_write_bw", 64<<10, 10e9/8), point("ib_write_bw", 1<<20, 236e9/8)}},
			{Points: []Point{point("ib_send_bw", 64<<10, 20e9/8), point("ib_send_bw", 1<<20, 135e9/8)}},
		}},
		{Experiment: e, Metric: experiment.Latency, Lines: []Curve{{Points: []Point{point("ib_write_lat", 1<<20, 2e-3), point("ib_write_lat", 64, 40e-6)}}}},
	}
	var b strings.Builder
	casesTable(figures).markdown(&b)
	for _, want := range []string{
		"(ib_write_bw) | not a metric of ib_write_bw | 236 Gb/s (1 MiB) |",
		"(ib_send_bw) | not a metric of ib_send_bw | 135 Gb/s (1 MiB) |",
		"(ib_write_lat) | 40 µs (64 B) | not a metric of ib_write_lat |",
		"| 20–25 % (derived) |", "| 9.8–12.3 µs (derived) |",
	} {
		if !strings.Contains(b.String(), want) {
			t.Errorf("no %q in\n%s", want, b.String())
		}
	}
}

// A single run has no interval, and no ratio with it is certain.
func TestSingleRun(t *testing.T) {
	r := results(1)
	r.Records = slices.DeleteFunc(r.Records, func(rec experiment.Record) bool { return rec.Round > 1 })
	f := figures(t, r)
	var b strings.Builder
	if err := Markdown(&b, r, f); err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(b.String(), "| 10.1 µs | single run |  | 1 |") || Ratios(f[0])[0].Sure {
		t.Errorf("a single run has an interval:\n%s", b.String())
	}
}

// Published values are of two hosts, so they stand beside measurements between two hosts only: the experiment has two figures.
func TestCitedBesideHosts(t *testing.T) {
	r := results(1)
	r.Header.Experiments[0] = strings.Replace(document, "[host, vms]", "[host, hosts]", 1)
	for i := range r.Records {
		if r.Records[i].Cell.Setting == experiment.VMs {
			r.Records[i].Cell.Setting, r.Records[i].Cell.MTU = experiment.Hosts, 9000
		}
	}
	list := figures(t, r)
	if len(list) != 2 || list[0].Apart != twoHosts || list[1].Apart != oneHost || title(list[0]) == title(list[1]) {
		t.Fatalf("%d figures: %+v", len(list), list)
	}
	// SoftRoCE, and the hardware it was compared with.
	var names []string
	for _, l := range list[0].Cited {
		names = append(names, l.Name)
	}
	if len(names) != 2 || !strings.Contains(strings.Join(names, ""), "ib_send_lat, softroce (published)") || len(list[1].Cited) != 0 {
		t.Errorf("published: %v beside two hosts, %v beside one", names, list[1].Cited)
	}
	for _, f := range list {
		for _, l := range f.Lines {
			for _, p := range l.Points {
				if distance(p.Cell.Setting) != f.Apart {
					t.Errorf("%s has %v", f.Apart, p.Cell)
				}
			}
		}
	}
}

// Lines of bare metal from figures with different hardware are left out: their mean is of nothing.
func TestHardwares(t *testing.T) {
	all, err := published.All()
	if err != nil {
		t.Fatal(err)
	}
	if severalHardwares([]string{"T-SR-LAT"}, all) || !severalHardwares([]string{"T-SH-LAT", "T-FF-LAT"}, all) {
		t.Error("T-SR-LAT has one hardware, T-SH-LAT and T-FF-LAT have two")
	}
}

// Every published experiment is repeated by an experiment of a suite, or the table says why not; never both.
func TestRepeated(t *testing.T) {
	all, err1 := published.All()
	suites, err2 := experiment.Suites()
	if err := errors.Join(err1, err2); err != nil {
		t.Fatal(err)
	}
	known := make(map[string]bool)
	for _, v := range all {
		known[v.Experiment] = true
	}
	for name := range known {
		if by, why := repeating(suites, name), notRepeated[name]; (len(by) > 0) == (why != "") {
			t.Errorf("%s is repeated by %q, and the reason why it is not is %q: want one of the two", name, by, why)
		}
	}
	for name := range notRepeated {
		if !known[name] {
			t.Errorf("%s is no published experiment", name)
		}
	}
	for _, e := range suites {
		for like := range strings.SplitSeq(e.Spec.Like, ",") {
			if like = strings.TrimSpace(like); like != "" && !known[like] {
				t.Errorf("%s is like %s, which is no published experiment", e.Name, like)
			}
		}
		if e.Spec.Like != "" && e.Spec.Rounds < 10 && distance(e.Spec.Settings[0]) == twoHosts && !experiment.Guests(e.Spec.Settings[0]) {
			t.Errorf("%s stands beside published values and has %d rounds, want 10", e.Name, e.Spec.Rounds)
		}
	}
}

// Every published value is drawn, or the table has the reason why not. (4 012 values once had neither.)
func TestPublishedValues(t *testing.T) {
	all, err1 := published.All()
	suites, err2 := experiment.Suites()
	if err := errors.Join(err1, err2); err != nil {
		t.Fatal(err)
	}
	values, drawn := 0, 0
	for _, u := range uses(suites, all) {
		n := u.drawn
		for why, count := range u.missed {
			n += count
			if why == "" {
				t.Errorf("%s: %d values are not drawn, and nothing says why", u.experiment, count)
			}
		}
		if n != u.values {
			t.Errorf("%s: %d of %d values have a place", u.experiment, n, u.values)
		}
		values, drawn = values+u.values, drawn+u.drawn
		t.Logf("%s: %d of %d drawn by %v; %v", u.experiment, u.drawn, u.values, u.by, u.missed)
	}
	if values != len(all) || drawn == 0 {
		t.Errorf("%d values are in the table, %d of them drawn; want all of %d", values, drawn, len(all))
	}
	// What the table calls drawn is what figures draw: the quoters are the same.
	points := 0
	for _, e := range suites {
		for _, d := range distances(e) {
			if !cites(e, d) {
				continue
			}
			lines, err := cited(e, experiment.Bandwidth, by(e))
			if err != nil {
				t.Fatal(err)
			}
			for _, l := range lines {
				points += len(l.Points)
			}
		}
	}
	if points == 0 {
		t.Error("no figure draws a published bandwidth")
	}
}

// Four processes of one transfer are not four rounds: a published mean has the range of its ten runs.
func TestPublishedRuns(t *testing.T) {
	suites, err := experiment.Suites()
	if err != nil {
		t.Fatal(err)
	}
	i := slices.IndexFunc(suites, func(e *experiment.Experiment) bool { return e.Name == "progress-transfers" })
	lines, err := cited(suites[i], experiment.Time, "pairs")
	if err != nil {
		t.Fatal(err)
	}
	var tips []string
	for _, l := range lines {
		for _, p := range l.Points {
			tips = append(tips, tip(Figure{Metric: experiment.Time}, l, p))
		}
	}
	text := strings.Join(tips, "\n")
	if !strings.Contains(text, "4 pairs: 418 ms, mean of 4 processes, mean of 10 runs from 341 ms to 460 ms") || strings.Contains(text, "rounds") {
		t.Errorf("published transfers:\n%s", text)
	}
}

// A program that polls is compared with TCP that polls and with TCP that sleeps; a program that sleeps only with TCP that sleeps.
func TestWaitsAlike(t *testing.T) {
	point := func(transport, tool, wait string, v float64) Point {
		return Point{Cell: experiment.Cell{Setting: experiment.Host, Transport: transport, Tool: tool, Size: 64, Pairs: 1, Wait: wait}, Summary: experiment.Summary{N: 5, Median: v, Low: v, High: v}}
	}
	f := Figure{Experiment: &experiment.Experiment{Spec: experiment.Spec{Title: "Latency"}}, Metric: experiment.Latency, Lines: []Curve{{Points: []Point{
		point(experiment.TCP, "tcp_lat", experiment.Event, 30e-6), point(experiment.TCP, "sockperf_poll", experiment.Poll, 4e-6),
		point(experiment.Verbs, "ib_send_lat", experiment.Poll, 2e-6), point(experiment.Verbs, "ib_send_lat", experiment.Event, 15e-6),
	}}}}
	text := strings.Join(verdicts([]Figure{f}), "\n")
	want := "Latency, against TCP that sleeps: one host, verbs, polls: 15 x.\nLatency, against TCP: one host, verbs, polls: 2.0 x; one host, verbs, sleeps: 2.0 x."
	if text != want {
		t.Errorf("got\n%s\nwant\n%s", text, want)
	}
	for _, test := range []struct {
		cell experiment.Cell
		want string
	}{
		{experiment.Cell{Tool: "sockperf", Transport: experiment.Sockets, Wait: experiment.Event}, experiment.Spins},
		{experiment.Cell{Tool: "kv_read", Transport: experiment.Verbs, Wait: experiment.Event}, experiment.Spins},
		{experiment.Cell{Tool: "vrdma_cp", Transport: experiment.TCP, Wait: experiment.Event}, experiment.Sleeps},
		{experiment.Cell{Tool: "ib_send_lat", Transport: experiment.Verbs, Wait: experiment.Event}, experiment.Sleeps},
		{experiment.Cell{Tool: "sockperf_poll", Transport: experiment.TCP, Wait: experiment.Poll}, experiment.Polls},
	} {
		if got := test.cell.Waiting(); got != test.want {
			t.Errorf("%v: %s, want %s", test.cell, got, test.want)
		}
	}
}

// Results of several commits, of a dirty tree or of several machines are not for publication.
func TestProvenance(t *testing.T) {
	part := func(program, processor string) experiment.Part {
		return experiment.Part{Program: program, Machine: experiment.Machine{Processor: processor}}
	}
	for _, test := range []struct {
		parts []experiment.Part
		want  string
	}{
		{[]experiment.Part{part("1", "Z80"), part("1", "Z80")}, ""},
		{[]experiment.Part{part("1", "Z80"), part("2-dirty", "6502")}, "of 2 commits and of changes that no commit has (2-dirty) and of 2 machines."},
		{nil, ""},
	} {
		got := provenance(&experiment.Results{Parts: test.parts})
		if test.want == "" && got != "" || !strings.Contains(got, test.want) {
			t.Errorf("got %q, want %q", got, test.want)
		}
	}
	if got := tools(experiment.Machine{Programs: map[string]string{"qperf": "0.4.11", "perftest": "4.5"}}); got != "Versions: perftest 4.5; qperf 0.4.11." {
		t.Errorf("tools: %q", got)
	}
}

// The report says what hosts and guests stand for, and what few processors mean; nothing about settings that were not used.
func TestThreats(t *testing.T) {
	run := func(processors int, settings ...string) string {
		r := &experiment.Results{Header: experiment.Header{Machine: experiment.Machine{Processors: processors}}}
		for _, s := range settings {
			r.Records = append(r.Records, experiment.Record{Cell: experiment.Cell{Setting: s}})
		}
		return strings.Join(threats(r), "\n")
	}
	for _, test := range []struct{ text, want, absent string }{
		{run(2, experiment.Hosts), "Two hosts are two network namespaces of one machine", "Guests are emulated"},
		{run(2, experiment.VMs), "Guests are emulated where KVM is missing", "Two hosts are"},
		{run(2, experiment.Host), "2 processors carry client, server and daemons", "Two hosts are"},
		{run(64, experiment.Host), "Published values are of other machines", "64 processors carry"},
	} {
		if !strings.Contains(test.text, test.want) || strings.Contains(test.text, test.absent) {
			t.Errorf("want %q and no %q:\n%s", test.want, test.absent, test.text)
		}
	}
}

// Every figure is also a file of its own: well-formed SVG with a legend, and CSV. Names and titles are unique.
func TestFiles(t *testing.T) {
	f := figures(t, results(1))
	seen := make(map[string]bool)
	for _, file := range Files(f) {
		if seen[file.Name] {
			t.Errorf("two files are called %s", file.Name)
		}
		seen[file.Name] = true
		var b bytes.Buffer
		if err := file.Write(&b); err != nil {
			t.Fatal(err)
		}
		if !strings.HasSuffix(file.Name, ".svg") {
			continue
		}
		for d := xml.NewDecoder(&b); ; {
			_, err := d.Token()
			if errors.Is(err, io.EOF) {
				break
			}
			if err != nil {
				t.Fatalf("%s: %v", file.Name, err)
			}
		}
	}
	if !seen["lat-latency.svg"] || !seen["lat-latency.csv"] {
		t.Errorf("files: %v", seen)
	}
}

// everySuite are results of all suites: each cell of a transport has the same value for each byte.
func everySuite(t *testing.T) *experiment.Results {
	t.Helper()
	suites, err := experiment.Suites()
	if err != nil {
		t.Fatal(err)
	}
	r := &experiment.Results{Header: experiment.Header{Version: experiment.Version, Machine: experiment.Machine{Processor: "Z80", Processors: 2}}}
	for _, e := range suites {
		text, err := e.Text()
		if err != nil {
			t.Fatal(err)
		}
		r.Header.Experiments = append(r.Header.Experiments, string(text))
		for round := range 3 {
			for _, c := range e.Cells() {
				seconds := (float64(transportColours[c.Transport]) + 1) * 1e-6 * (1 + float64(c.Size)/4096) * (1 + float64(round)/100)
				if c.PathMTU == 1024 {
					seconds /= 0.95
				}
				if tool, _ := experiment.FindTool(c.Tool); tool.Asks {
					seconds = 1e-6
				}
				size := max(float64(c.Size), 1)
				r.Records = append(r.Records, experiment.Record{Experiment: e.Name, Cell: c, Round: round + 1, Measurement: experiment.Measurement{
					Values: map[string]float64{experiment.Latency: seconds, experiment.Bandwidth: size / seconds, experiment.Rate: 1 / seconds, experiment.Time: seconds},
					CPU:    map[string]float64{"client": 1, "server": 0.5, "daemon": 0.7, "rest": 0.1}, Seconds: 1, Samples: 1000, Bytes: size * 1000, Proof: "counted",
				}})
			}
		}
	}
	return r
}

// No drawing of any suite has more than six lines, all lines are drawn, panels of a figure have the same axes, and titles are unique.
func TestPanels(t *testing.T) {
	titles := make(map[string]bool)
	for _, f := range figures(t, everySuite(t)) {
		if titles[title(f)] {
			t.Errorf("two figures are called %q", title(f))
		}
		titles[title(f)] = true
		if f.By == "" {
			continue
		}
		parts := f.Panels
		if len(parts) == 0 {
			parts = []Figure{f}
		}
		names, own := make(map[string]bool), 0
		axes := fmt.Sprint(newPlot(parts[0]).Axes.Y)
		for _, p := range parts {
			if n := len(p.Lines) + len(p.Cited); n > mostLines || n == 0 {
				t.Errorf("%s, panel %q has %d lines", title(f), p.name, n)
			}
			if names[p.name] {
				t.Errorf("%s has two panels %q", title(f), p.name)
			}
			names[p.name] = true
			own += len(p.Lines)
			if got := fmt.Sprint(newPlot(p).Axes.Y); got != axes {
				t.Errorf("%s, panel %q has other axes than the first", title(f), p.name)
			}
		}
		if own < len(f.Lines) {
			t.Errorf("%s: %d of %d lines are drawn", title(f), own, len(f.Lines))
		}
	}
}

// Bars that are all equal are a sentence; bars that differ by more than 20 times are dots on a logarithmic axis; path MTUs are compared by ratios.
func TestBars(t *testing.T) {
	bars := func(values ...float64) Figure {
		f := Figure{Experiment: &experiment.Experiment{Name: "e"}, Metric: experiment.Bandwidth}
		for i, v := range values {
			f.Lines = append(f.Lines, Curve{Name: fmt.Sprint(i), Points: []Point{{Summary: experiment.Summary{N: 3, Median: v, Low: v, High: v}}}})
		}
		return f
	}
	for _, test := range []struct {
		f        Figure
		drawings int
		dots     bool
	}{
		{bars(1e9, 1e9, 1e9), 0, false},
		{bars(1e9, 2e9), 1, false},
		{bars(1e9, 3e10), 1, true},
		{bars(1e9), 1, false},
	} {
		if n := test.f.Drawings(); n != test.drawings || (test.f.constant() == "") != (n > 0) {
			t.Errorf("%d drawings, want %d; constant: %q", n, test.drawings, test.f.constant())
		}
		if p := newPlot(test.f); (p.Bars[0].Dot != nil) != test.dots || (p.Base != nil) != test.dots {
			t.Errorf("dots %v, want %v", p.Bars[0].Dot != nil, test.dots)
		}
	}
	for _, f := range figures(t, everySuite(t)) {
		if f.Experiment.Name != "thesis-mtu" {
			continue
		}
		p := f.drawing()
		if len(p.Bars) != 2 || !strings.Contains(p.Bars[0].Name, "path MTU 1024 / 4096") || p.Bars[0].Value != "0.95" || p.Base.Text != "1: equal" {
			t.Errorf("path MTUs: %+v", p.Bars)
		}
	}
}

// Lines have their names at their ends, without what all lines share, and no two names overlap.
func TestDirectLabels(t *testing.T) {
	for _, f := range figures(t, everySuite(t)) {
		for _, p := range append([]Figure{f}, f.Panels...) {
			if p.By == "" || len(p.Lines)+len(p.Cited) > mostLines {
				continue
			}
			last := math.Inf(-1)
			plot := newPlot(p)
			if len(plot.Direct) != len(plot.Lines) {
				t.Errorf("%s: %d labels for %d lines", title(f), len(plot.Direct), len(plot.Lines))
			}
			for _, l := range plot.Direct {
				y, err := strconv.ParseFloat(l.Y, 64)
				if err != nil || y < last+labelHeight-0.2 || y > plotHeight {
					t.Errorf("%s: label %q is at %s, after one at %v", title(f), l.Text, l.Y, last)
				}
				last = y
				if l.Text == "" || len([]rune(l.Text)) > longestLabel {
					t.Errorf("%s: label %q", title(f), l.Text)
				}
			}
		}
	}
}

// The first screen says which is faster for 64 KiB between containers, what it costs and how sure that is, and shows the figure.
func TestFindings(t *testing.T) {
	r := everySuite(t)
	f := figures(t, r)
	list, chosen := Findings(f)
	if len(list) != 3 || chosen == nil || chosen.Experiment.Name != "slides-overlay-bandwidth" || chosen.Metric != experiment.Bandwidth {
		t.Fatalf("%q of %v", list, chosen)
	}
	for i, want := range []string{
		"Speed: messages of 64 KiB, between containers: 30.5 Gb/s with vrdma (ib_send_bw, which polls), 15.3 Gb/s with TCP that sleeps (tcp_bw): vrdma is 2.00 times faster. Against TCP that polls as well, half a round trip of 64 B on one host takes",
		"core-seconds with vrdma and",
		"vrdma's 3 rounds give 30.2 Gb/s to 30.8 Gb/s (coverage 75 %)",
	} {
		if !strings.Contains(list[i], want) {
			t.Errorf("finding %d: %q, want %q", i+1, list[i], want)
		}
	}
	if !strings.Contains(list[2], "comparisons of this report, vrdma is better in") || !strings.Contains(list[2], "It is worse in ") && !strings.Contains(list[2], "worse in 0") {
		t.Errorf("certainty: %q", list[2])
	}
	var page, text bytes.Buffer
	if err := errors.Join(HTML(&page, r, f), Markdown(&text, r, f)); err != nil {
		t.Fatal(err)
	}
	first, summary := strings.Index(page.String(), `<section class="first">`), strings.Index(page.String(), `<section class="summary">`)
	if first < 0 || summary < first || strings.Count(page.String()[first:summary], "<svg class=\"plot\"") != 1 {
		t.Error("the first screen has no figure, or is not first")
	}
	if !strings.Contains(text.String(), "measured\n\n1. Speed: ") {
		t.Errorf("the text begins\n%.300s", text.String())
	}
	// Without a comparison there are no findings, and the summary is open.
	page.Reset()
	if err := HTML(&page, results(1), figures(t, results(1))); err != nil || strings.Contains(page.String(), "Speed: ") || !strings.Contains(page.String(), "<details open>") {
		t.Errorf("a page without a comparison: %v", err)
	}
}

// A colour means one transport in every figure; the lines of a drawing differ in dashes and marks.
func TestLineStyles(t *testing.T) {
	line := func(transport string, published bool) Curve {
		return Curve{Published: published, Points: []Point{{Cell: experiment.Cell{Transport: transport}}}}
	}
	var lines []Curve
	for range 7 {
		lines = append(lines, line(experiment.Verbs, false), line(experiment.TCP, false), line("", true))
	}
	seen := make(map[string]bool)
	for i, s := range lineStyles(lines) {
		if l := lines[i]; !l.Published && s.colour != transportColours[l.Points[0].Cell.Transport] {
			t.Errorf("line %d has colour %d", i, s.colour)
		}
		if i > 0 && i <= mostLines && s.dash == 0 {
			t.Errorf("line %d looks like the first one in print", i)
		}
		key := fmt.Sprint(s.class(lines[i]), s.shape)
		if seen[key] {
			t.Errorf("two lines look like %s", key)
		}
		seen[key] = true
	}
}
