package report

import (
	_ "embed"
	"fmt"
	"html"
	"slices"
	"strings"

	"vrdma/internal/experiment"
)

// publications are what suites repeat: a heading, and a paragraph.
var publications = map[string][2]string{
	"quick":       {"At a glance", "What a newcomer wants to know: latency and bandwidth beside TCP."},
	"speed":       {"The speed table", "Rows of make bench, without their bounds."},
	"thesis":      {"A thesis of 2022: RDMA in containers", "E. Ford, Explaining and Evaluating the Use of RDMA in High Performance Containers. Six ways, four figures each; every figure has a panel for reads, writes and sends. Its data is public, which is why this can be drawn beside it."},
	"slides":      {"Slides of 2020: container networks and FreeFlow", "A talk that shows figures of Abbasi et al. (IEEE Network, 2019) and of FreeFlow (NSDI 2019). Values were read from plots."},
	"lab":         {"A university's RDMA lab", "Its steps that can be measured: K-2 sockets, K-3 verbs, K-4 many processes, and the key-value store. K-1, which port and how fast, is what vrdma doctor prints. Of K-2 the library that bypasses the kernel needs hardware: sockets over RDMA stand in its place. Of K-3 the slow processor is left out: this machine's frequency cannot be chosen. The lab publishes no values: they are the students' to find."},
	"progress":    {"A progress report of 2015: hosts, virtual machines, containers", "Ten groups of transfers were planned, and four measured. Bytes were not recorded; its figures of RDMA with four transfers exceed the wire."},
	"mikelangelo": {"MIKELANGELO D4.1 (2015): NetPIPE between hosts and virtual machines", "Six cases in three figures, without numbers. What the text says of them: 1.4 to 2.2 µs for small messages with verbs, 8.2 to 10.3 µs between virtual machines, about 100 µs over 1 Gb/s Ethernet; virtual machines reach 20 to 25 % of the hosts' bandwidth."},
}

// writeContents writes links to the suites, if there are several.
func writeContents(b *strings.Builder, figures []Figure) {
	var suites []string
	for _, f := range figures {
		if suite := f.Experiment.Spec.Suite; !slices.Contains(suites, suite) {
			suites = append(suites, suite)
		}
	}
	if len(suites) < 2 {
		return
	}
	b.WriteString("<nav>")
	for _, suite := range suites {
		name := suite
		if p, known := publications[suite]; known {
			name = p[0]
		}
		fmt.Fprintf(b, "<a href=\"#suite-%s\">%s</a>", html.EscapeString(suite), html.EscapeString(name))
	}
	b.WriteString("</nav>\n")
}

// writeSuite writes what comes before the figures of a suite.
func writeSuite(b *strings.Builder, suite string, figures []Figure) {
	p, known := publications[suite]
	if !known {
		fmt.Fprintf(b, "<h2 id=\"suite-%s\">%[1]s</h2>\n", html.EscapeString(suite))
		return
	}
	fmt.Fprintf(b, "<h2 id=\"suite-%s\">%s</h2>\n<p>%s</p>\n", suite, html.EscapeString(p[0]), html.EscapeString(p[1]))
	switch suite {
	case "thesis":
		writeWords(b)
		writeCosts(b, figures)
	case "progress":
		writeGroups(b, figures)
	case "mikelangelo":
		writeCases(b, figures)
	}
}

// words is the thesis' comparison in words: a line for each way, columns apart by tabs. The row of vrdma has
// evidence in brackets.
//
//go:embed words.tsv
var words string

func writeWords(b *strings.Builder) {
	b.WriteString("<details open><summary>The ways in words</summary><div class=\"scroll\"><table class=\"words\">")
	for i, line := range strings.Split(strings.TrimSpace(words), "\n") {
		cell := "td"
		if i == 0 {
			cell = "th"
		}
		b.WriteString("<tr>")
		for _, text := range strings.Split(line, "\t") {
			fmt.Fprintf(b, "<%s>%s</%[1]s>", cell, html.EscapeString(text))
		}
		b.WriteString("</tr>")
	}
	b.WriteString("</table></div></details>\n")
}

// costs are the thesis' core-seconds per GiB, of both hosts, one pair of 64 KiB: send, write, read. They are
// derived from its raw files.
var costs = []struct {
	system string
	values [3]float64
}{{"SoftRoCE (published)", [3]float64{3.52, 1.82, 2.42}}, {"FreeFlow (published)", [3]float64{0.67, 0.49, 0.52}}, {"shared HCA (published)", [3]float64{0.18, 0.08, 0.09}}}

// writeCosts writes processor time per GiB of 64 KiB messages, which carries over to other machines better
// than anything else.
func writeCosts(b *strings.Builder, figures []Figure) {
	tools := [3]string{"ib_send_bw", "ib_write_bw", "ib_read_bw"}
	rows := make(map[string]*[3]float64)
	var order []string
	for _, f := range figures {
		if f.Experiment.Spec.Suite != "thesis" || f.Metric != experiment.Bandwidth {
			continue
		}
		for _, l := range f.Lines {
			for _, p := range l.Points {
				if p.Cell.Size != 64<<10 || p.Cell.Pairs != 1 || p.Cell.Rate != "" || p.Cell.PathMTU != 0 || len(p.CPU) == 0 {
					continue
				}
				name := fmt.Sprintf("%s, %s", transportName(p.Cell.Transport), where(p.Cell))
				if rows[name] == nil {
					rows[name] = &[3]float64{}
					order = append(order, name)
				}
				for i, tool := range tools {
					if tool == p.Cell.Tool && rows[name][i] == 0 {
						rows[name][i] = p.CPU["client"] + p.CPU["server"] + p.CPU["daemon"]
					}
				}
			}
		}
	}
	if len(order) == 0 {
		return
	}
	b.WriteString("<h3>Processor time per GiB</h3><p class=\"why\">Core-seconds of client, server and daemons together, one pair, 64 KiB. A polling client's time is in it, as in the published values.</p><div class=\"scroll\"><table><thead><tr><th></th><th>send</th><th>write</th><th>read</th></tr></thead><tbody>")
	row := func(name string, values [3]float64) {
		fmt.Fprintf(b, "<tr><td>%s</td>", html.EscapeString(name))
		for _, v := range values {
			text := "–"
			if v > 0 {
				text = fmt.Sprintf("%.2f", v)
			}
			fmt.Fprintf(b, "<td>%s</td>", text)
		}
		b.WriteString("</tr>")
	}
	for _, name := range order {
		row(name, *rows[name])
	}
	for _, c := range costs {
		row(c.system, c.values)
	}
	b.WriteString("</tbody></table></div>\n")
}

// transportName is a transport in words.
func transportName(t string) string {
	switch t {
	case experiment.Verbs:
		return "vrdma"
	case experiment.Kernel:
		return "the kernel's device"
	}
	return t
}

// groups are the progress report's ten, with what it published: seconds of one transfer, and of four.
var groups = []struct {
	name, setting, transport string
	sides                    int
	one, four                float64
}{
	{"1: host to host, TCP", experiment.Hosts, experiment.TCP, 1, 1.097, 1.234},
	{"2: host to host, RDMA", experiment.Hosts, experiment.Verbs, 1, 0.173, 0.418},
	{"3: VM to VM, TCP", experiment.VMs, experiment.TCP, 1, 0.982, 1.195},
	{"4: VM to VM, RDMA", experiment.VMs, experiment.Verbs, 1, 0.230, 0.605},
	{"5: container to container, TCP", experiment.Containers, experiment.TCP, 1, 0, 0},
	{"6: container to container, RDMA", experiment.Containers, experiment.Verbs, 1, 0, 0},
	{"7: four VMs a side, TCP", experiment.VMs, experiment.TCP, 4, 0, 0},
	{"8: four VMs a side, RDMA", experiment.VMs, experiment.Verbs, 4, 0, 0},
	{"9: four containers a side, TCP", experiment.Containers, experiment.TCP, 4, 0, 0},
	{"10: four containers a side, RDMA", experiment.Containers, experiment.Verbs, 4, 0, 0},
}

// writeGroups writes the table of groups: every cell is a value or a reason.
func writeGroups(b *strings.Builder, figures []Figure) {
	var transfers []*Figure // of hosts and containers, and of guests
	for i := range figures {
		if slices.Contains([]string{"progress-transfers", "progress-guests"}, figures[i].Experiment.Name) && figures[i].Metric == experiment.Time {
			transfers = append(transfers, &figures[i])
		}
	}
	if len(transfers) == 0 {
		return
	}
	b.WriteString("<h3>The ten groups</h3><p class=\"why\">Seconds of a transfer of 1 GB, between guests of the bytes that the cell says; the mean over transfers that run at once; median of rounds. Published: table 5 and 6, means of ten runs.</p>")
	b.WriteString("<div class=\"scroll\"><table><thead><tr><th>group</th><th>one</th><th>four at once</th><th>published: one</th><th>four</th></tr></thead><tbody>")
	for _, g := range groups {
		fmt.Fprintf(b, "<tr><td>%s</td>", html.EscapeString(g.name))
		for _, pairs := range []int{1, 4} {
			text, class := groupCell(transfers, g.setting, g.transport, g.sides, pairs)
			fmt.Fprintf(b, "<td class=\"%s\">%s</td>", class, html.EscapeString(text))
		}
		for _, v := range []float64{g.one, g.four} {
			text := "never measured"
			if v > 0 {
				text = experiment.Quantity(v, experiment.Time)
			}
			fmt.Fprintf(b, "<td>%s</td>", text)
		}
		b.WriteString("</tr>")
	}
	b.WriteString("</tbody></table></div>\n")
}

// groupCell is a value, or why there is none.
func groupCell(figures []*Figure, setting, transport string, sides, pairs int) (text, class string) {
	if sides > 1 {
		return map[string]string{experiment.Containers: "not measured: one container a side", experiment.VMs: "not measured: one guest a side"}[setting], "none"
	}
	for _, f := range figures {
		for _, l := range f.Lines {
			for _, p := range l.Points {
				if p.Cell.Setting == setting && p.Cell.Transport == transport && p.Cell.Pairs == pairs {
					text := experiment.Quantity(p.Summary.Median, f.Metric)
					if setting == experiment.VMs {
						text += " for " + p.Cell.Size.String()
					}
					return text, ""
				}
			}
		}
		for _, p := range f.Missing {
			if p.Cell.Setting == setting && p.Cell.Transport == transport && p.Cell.Pairs == pairs {
				return short(p.Failed), "none"
			}
		}
	}
	return "not in this run", "none"
}
