package report

import (
	"cmp"
	"encoding/csv"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"

	"vrdma.dev/vrdma/internal/instrument/experiment"
)

// Markdown writes the report for a terminal or a repository.
func Markdown(w io.Writer, r *experiment.Results, figures []Figure) error {
	var b strings.Builder
	b.WriteString("# RDMA without hardware: what was measured\n\n")
	if findings, chosen := Findings(figures); chosen != nil {
		for i, text := range findings {
			fmt.Fprintf(&b, "%d. %s\n", i+1, text)
		}
		fmt.Fprintf(&b, "\n%s The figure %q shows the first.\n\n", source(r), title(*chosen))
	}
	for i, p := range Summary(r, figures) {
		if i > 0 {
			b.WriteString("\n")
		}
		fmt.Fprintf(&b, "%s:\n\n- %s\n", p.Title, strings.Join(p.Sentences, "\n- "))
	}
	suite := ""
	for _, f := range figures {
		if f.Experiment.Spec.Suite != suite {
			suite = f.Experiment.Spec.Suite
			markdownSuite(&b, suite, figures)
		}
		fmt.Fprintf(&b, "\n### %s\n\n", title(f))
		markdownTable(&b, f)
		if s := Sentences(f); len(s) > 0 {
			fmt.Fprintf(&b, "\n- %s\n", strings.Join(s, "\n- "))
		}
		if s := Remarks(f); len(s) > 0 {
			fmt.Fprintf(&b, "\nWhere a method misleads:\n\n- %s\n", strings.Join(s, "\n- "))
		}
		for _, p := range f.Missing {
			fmt.Fprintf(&b, "\nNot measured: %s: %s\n", p.Cell, short(p.Failed))
		}
	}
	repeatedTable().markdown(&b)
	_, err := io.WriteString(w, b.String())
	return err
}

// markdownSuite writes the text before the figures of a suite.
func markdownSuite(b *strings.Builder, suite string, figures []Figure) {
	p, known := publications[suite]
	if !known {
		fmt.Fprintf(b, "\n## %s\n", suite)
		return
	}
	fmt.Fprintf(b, "\n## %s\n\n%s\n", p[0], p[1])
	for _, t := range tablesOf(suite, figures) {
		t.markdown(b)
	}
}

// units returns the unit of processor time in a figure, and whether tools have different ones, so that each value needs its own.
func units(f Figure) (unit string, mixed bool) {
	for _, l := range f.Lines {
		for i := range l.Points {
			p := &l.Points[i]
			switch per := perWhat(&p.Tool); unit {
			case "":
				unit = per
			case per:
			default:
				return "", true
			}
		}
	}
	return unit, false
}

// processorTime formats processor time.
func processorTime(p *Point, v float64, mixed bool) string {
	text := fmt.Sprintf("%.3g", v)
	if mixed {
		text += " " + perWhat(&p.Tool)
	}
	return text
}

// markdownTable writes the values of a figure. Processor time is the sum of client, server and daemons, with the rest of the machine
// beside it. A figure of metric cpu has no such columns.
func markdownTable(b *strings.Builder, f Figure) {
	if len(f.Lines) == 0 {
		return
	}
	unit, mixed := units(f)
	if !mixed {
		unit = ", " + unit
	}
	columns := f.Metric != experiment.CPU
	b.WriteString("| what | size | pairs | median | interval | coverage | rounds |")
	if columns {
		fmt.Fprintf(b, " CPU%s | rest of the machine |\n|---|---|---|---|---|---|---|---|---|\n", unit)
	} else {
		b.WriteString("\n|---|---|---|---|---|---|---|\n")
	}
	for _, l := range f.Lines {
		for i := range l.Points {
			p := &l.Points[i]
			size, cpu, rest := "", "", ""
			if p.Cell.Size != 0 {
				size = p.Cell.Size.String()
			}
			if v := p.CPU["client"] + p.CPU["server"] + p.CPU["daemon"]; v > 0 {
				cpu = processorTime(p, v, mixed)
				if p.StartUp {
					cpu += " with start-up"
				}
			}
			if v, counted := p.CPU["rest"]; counted {
				rest = processorTime(p, v, mixed)
			}
			fmt.Fprintf(b, "| %s | %s | %d | %s | %s | %s | %d |", l.Name, size, p.Cell.Pairs, experiment.Quantity(p.Summary.Median, f.Metric),
				interval(p.Summary, f.Metric), coverage(p.Summary), p.Summary.N)
			if columns {
				fmt.Fprintf(b, " %s | %s |", cpu, rest)
			}
			b.WriteString("\n")
		}
	}
}

// interval formats the interval of a median.
func interval(s experiment.Summary, metric string) string {
	if s.N < 2 {
		return "single run"
	}
	return experiment.Quantity(s.Low, metric) + " to " + experiment.Quantity(s.High, metric)
}

// coverage formats the coverage of an interval; "": there is no interval.
func coverage(s experiment.Summary) string {
	if s.N < 2 {
		return ""
	}
	return fmt.Sprintf("%.0f %%", 100*s.Coverage)
}

// CSV writes every value, in seconds, bytes/s and 1/s.
func CSV(w io.Writer, figures []Figure) error { return writeCSV(w, figures) }

// rolesOf returns the roles with processor time. qemu is one only where there are guests.
func rolesOf(figures []Figure) []string {
	guests := slices.ContainsFunc(figures, func(f Figure) bool {
		return slices.ContainsFunc(f.Lines, func(l Curve) bool {
			return slices.ContainsFunc(l.Points, func(p Point) bool { _, has := p.CPU["qemu"]; return has })
		})
	})
	if guests {
		return []string{"client", "server", "daemon", "qemu", "rest"}
	}
	return []string{"client", "server", "daemon", "rest"}
}

func writeCSV(w io.Writer, figures []Figure) error {
	c := csv.NewWriter(w)
	roles := rolesOf(figures)
	head := []string{"suite", "experiment", "metric", "setting", "transport", "tool", "size", "pairs", "link_mtu", "path_mtu", "wait", "link_rate", "link_delay", "per_side", "server_share", "queue_pairs", "depth", "inline", "role", "rounds", "median", "low", "high", "coverage", "p99", "p999", "cpu_per", "cpu_with_start_up"}
	for _, role := range roles {
		head = append(head, "cpu_"+role)
	}
	rows := [][]string{append(head, "proof", "failed")}
	number := func(v float64) string { return strconv.FormatFloat(v, 'g', 6, 64) }
	depth := func(n int) string { // 0: unknown
		if n == 0 {
			return ""
		}
		return strconv.Itoa(n)
	}
	percentile := func(v float64) string { // 0: there is none
		if v == 0 {
			return ""
		}
		return number(v)
	}
	for _, f := range figures {
		points := append([]Point(nil), f.Missing...)
		for _, l := range f.Lines {
			points = append(points, l.Points...)
		}
		for i := range points {
			p := &points[i]
			row := []string{f.Experiment.Spec.Suite, f.Experiment.Name, f.Metric, p.Cell.Setting, p.Cell.Transport, p.Cell.Tool, fmt.Sprint(int64(p.Cell.Size)), fmt.Sprint(p.Cell.Pairs),
				fmt.Sprint(p.Cell.MTU), fmt.Sprint(p.PathMTU), p.Cell.Waiting(), p.Cell.Rate, p.Cell.Delay, fmt.Sprint(p.Cell.ContainersPerSide()), fmt.Sprint(cmp.Or(p.Cell.Share, 100)), fmt.Sprint(max(p.Cell.QPs, 1)), depth(p.Depth), p.Inline, p.role, fmt.Sprint(p.Summary.N)}
			if p.Summary.N > 0 {
				row = append(row, number(p.Summary.Median), number(p.Summary.Low), number(p.Summary.High), number(p.Summary.Coverage), percentile(p.P99), percentile(p.P999))
			} else {
				row = append(row, "", "", "", "", "", "")
			}
			row = append(row, strings.TrimPrefix(perWhat(&p.Tool), "s/"), strconv.FormatBool(p.StartUp))
			for _, role := range roles {
				text := ""
				if v, counted := p.CPU[role]; counted {
					text = number(v)
				}
				row = append(row, text)
			}
			rows = append(rows, append(row, p.Proof, firstLine(p.Failed)))
		}
	}
	if err := c.WriteAll(rows); err != nil {
		return err
	}
	c.Flush()
	return c.Error()
}
