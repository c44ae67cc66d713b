package report

import (
	_ "embed"
	"fmt"
	"slices"
	"strings"

	"vrdma.dev/vrdma/internal/instrument/experiment"
)

// publications are the publications that suites repeat: a heading and a paragraph.
var publications = map[string][2]string{
	"quick":       {"At a glance", "What a newcomer wants to know: latency and bandwidth beside TCP."},
	"speed":       {"The speed table", "Rows of make bench, without their bounds."},
	"thesis":      {"A thesis of 2022: RDMA in containers", "E. Ford, Explaining and Evaluating the Use of RDMA in High Performance Containers. Six ways, four figures each; every figure has a panel for reads, writes and sends. Its data is public, which is why this can be drawn beside it."},
	"slides":      {"Slides of 2020: container networks and FreeFlow", "A talk that shows figures of Abbasi et al. (IEEE Network, 2019) and of FreeFlow (NSDI 2019). Values were read from plots."},
	"lab":         {"A university's RDMA lab", "Its steps: K-1 the port, K-2 sockets, K-3 verbs, K-4 many processes, and the key-value store. K-1, which port and how fast, is what vrdma doctor prints, too. Of K-2 the library that bypasses the kernel needs hardware: sockets over RDMA stand in its place. Of K-3 the server's slow processor is half of one: few machines let their frequency be chosen. The lab publishes no values: they are the students' to find."},
	"progress":    {"A progress report of 2015: hosts, virtual machines, containers", "Ten groups of transfers were planned, and four measured. Bytes were not recorded; its figures of RDMA with four transfers exceed the wire."},
	"mikelangelo": {"MIKELANGELO D4.1 (2015): NetPIPE between hosts and virtual machines", "Six cases in three figures, without numbers. What the text says of them: 1.4 to 2.2 µs for small messages with verbs, 8.2 to 10.3 µs between virtual machines, about 100 µs over 1 Gb/s Ethernet; virtual machines reach 20 to 25 % of the hosts' bandwidth."},
}

// A suiteView is a suite for the page: its heading, what it repeats, and the tables before its figures.
type suiteView struct {
	ID, Name, About string
	Tables          []tableView
}

// contents are links to the suites, if there are several.
func contents(figures []Figure) []suiteView {
	var suites []string
	for _, f := range figures {
		if suite := f.Experiment.Spec.Suite; !slices.Contains(suites, suite) {
			suites = append(suites, suite)
		}
	}
	if len(suites) < 2 {
		return nil
	}
	var list []suiteView
	for _, suite := range suites {
		name := suite
		if p, known := publications[suite]; known {
			name = p[0]
		}
		list = append(list, suiteView{ID: suite, Name: name})
	}
	return list
}

// newSuiteView has what comes before the figures of a suite.
func newSuiteView(suite string, figures []Figure) *suiteView {
	p, known := publications[suite]
	if !known {
		return &suiteView{ID: suite, Name: suite}
	}
	v := &suiteView{ID: suite, Name: p[0], About: p[1]}
	for _, t := range tablesOf(suite, figures) {
		v.Tables = append(v.Tables, t.view())
	}
	return v
}

// words is the thesis' comparison in words: a line for each way, columns apart by tabs. The row of vrdma has
// evidence in brackets.
//
//go:embed words.tsv
var words string

func wordsTable() *table {
	t := &table{title: "The ways in words", words: true}
	for i, line := range strings.Split(strings.TrimSpace(words), "\n") {
		cells := strings.Split(line, "\t")
		if i == 0 {
			t.head = cells
			continue
		}
		var row []field
		for _, text := range cells {
			row = append(row, field{text: text})
		}
		t.add(row...)
	}
	return t
}

// costs are the thesis' core-seconds per GiB of both hosts, for one pair with 64 KiB: send, write, read. They are computed from its
// raw files.
var costs = []struct {
	system string
	values [3]float64
}{{"SoftRoCE (published, T-SR-BW and T-SR-CPU)", [3]float64{3.52, 1.82, 2.42}}, {"FreeFlow (published, T-FF-BW and T-FF-CPU)", [3]float64{0.67, 0.49, 0.52}}, {"shared HCA (published, T-SH-BW and T-SH-CPU)", [3]float64{0.18, 0.08, 0.09}}}

// A cost is core-seconds per GiB by tool: of the whole machine, and of client, server and daemons alone.
type cost struct {
	name         string
	whole, alone [3]float64 // 0: not measured
}

// costsOf returns the measured costs.
func costsOf(figures []Figure) (rows []*cost) {
	tools := [3]string{"ib_send_bw", "ib_write_bw", "ib_read_bw"}
	for _, f := range figures {
		if f.Experiment.Spec.Suite != "thesis" || f.Metric != experiment.Bandwidth {
			continue
		}
		for _, l := range f.Lines {
			for i := range l.Points {
				p := &l.Points[i]
				if p.Cell.Size != 64<<10 || p.Cell.Pairs != 1 || p.Cell.Rate+p.Cell.Delay != "" || p.Cell.PathMTU != 0 || p.Cell.Share != 0 || p.Cell.QPs != 0 || p.Cell.Wait == experiment.Event || len(p.CPU) == 0 {
					continue
				}
				name := fmt.Sprintf("%s, %s", transportName(p.Cell.Transport), where(p.Cell))
				i := slices.IndexFunc(rows, func(c *cost) bool { return c.name == name })
				if i < 0 {
					i = len(rows)
					rows = append(rows, &cost{name: name})
				}
				if tool := slices.Index(tools[:], p.Cell.Tool); tool >= 0 && rows[i].alone[tool] == 0 {
					alone := p.CPU["client"] + p.CPU["server"] + p.CPU["daemon"]
					rows[i].alone[tool] = alone
					if rest, counted := p.CPU["rest"]; counted {
						rows[i].whole[tool] = alone + rest
					}
				}
			}
		}
	}
	return rows
}

// costsTable is processor time per GiB with 64 KiB messages. Of all values it depends least on the machine.
func costsTable(figures []Figure) *table {
	ours := costsOf(figures)
	if len(ours) == 0 {
		return nil
	}
	t := &table{title: "Processor time per GiB", head: []string{"", "send", "write", "read"},
		why: "Core-seconds of the whole machine, one pair, 64 KiB, as the published values are of both whole hosts: also what the kernel took beside the programs, " +
			"where its rxe works, and whatever else ran. In brackets client, server and daemons alone. A polling client's time is in all of them. Published values are of the experiments in brackets, from their raw files: for SoftRoCE with 18 pairs the thesis' text and its files disagree."}
	for _, c := range ours {
		cells := []field{{text: c.name}}
		for i, v := range c.whole {
			switch alone := c.alone[i]; {
			case v > 0:
				cells = append(cells, value("%.2f (%.2f)", v, alone))
			case alone > 0:
				cells = append(cells, value("not counted (%.2f)", alone))
			default:
				cells = append(cells, reason("not measured"))
			}
		}
		t.add(cells...)
	}
	for _, c := range costs {
		t.add(field{text: c.system}, value("%.2f", c.values[0]), value("%.2f", c.values[1]), value("%.2f", c.values[2]))
	}
	return t
}

// transportName names a transport for readers.
func transportName(t string) string {
	switch t {
	case experiment.Verbs:
		return "vrdma"
	case experiment.Kernel:
		return "the kernel's device"
	}
	return t
}
