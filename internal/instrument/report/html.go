package report

import (
	_ "embed"
	"encoding/base64"
	"fmt"
	"html"
	"io"
	"strings"

	"vrdma.dev/vrdma/internal/instrument/experiment"
)

//go:embed style.css
var style string

//go:embed page.js
var script string

// HTML writes a page that needs nothing else.
func HTML(w io.Writer, r *experiment.Results, figures []Figure) error {
	var b strings.Builder
	b.WriteString("<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\"><meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n")
	b.WriteString("<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'\">\n")
	fmt.Fprintf(&b, "<title>vrdma: what was measured</title><style>%s</style></head><body><main>\n", style)
	b.WriteString("<h1>RDMA without hardware: what was measured</h1>\n<section class=\"summary\">")
	for _, p := range Summary(r, figures) {
		fmt.Fprintf(&b, "<h2>%s</h2>", html.EscapeString(p.Title))
		list(&b, "", p.Sentences)
	}
	b.WriteString("</section>\n")
	writeContents(&b, figures)
	suite := ""
	for i, f := range figures {
		if f.Experiment.Spec.Suite != suite {
			suite = f.Experiment.Spec.Suite
			writeSuite(&b, suite, figures)
		}
		writeFigure(&b, i, f, i == 0 || figures[i-1].Experiment.Name != f.Experiment.Name)
	}
	writeMethod(&b)
	fmt.Fprintf(&b, "</main><div id=\"tip\" hidden></div><script>%s</script></body></html>\n", script)
	_, err := io.WriteString(w, b.String())
	return err
}

// writeFigure writes a drawing with its legend, sentences and table.
func writeFigure(b *strings.Builder, n int, f Figure, first bool) {
	fmt.Fprintf(b, "<section class=\"figure\" id=\"figure-%d\"><h3>%s</h3>", n+1, html.EscapeString(title(f)))
	if f.Experiment.Spec.Why != "" && first { // of another metric it is the same
		fmt.Fprintf(b, "<p class=\"why\">%s</p>", html.EscapeString(f.Experiment.Spec.Why))
	}
	switch {
	case len(f.Panels) > 0:
		b.WriteString("<div class=\"panels\">")
		for _, panel := range f.Panels {
			fmt.Fprintf(b, "<figure><h4>%s</h4>", html.EscapeString(panel.Lines[0].Points[0].Cell.Tool))
			b.WriteString(svg(panel))
			legend(b, panel)
			b.WriteString("</figure>")
		}
		fmt.Fprintf(b, "</div><p class=\"caption\">%s</p>", caption(f))
	case len(f.Lines) > 0:
		b.WriteString("<figure>" + svg(f))
		if f.By != "" {
			legend(b, f)
		}
		fmt.Fprintf(b, "<figcaption>%s</figcaption></figure>", caption(f))
	}
	writeSentences(b, Sentences(f))
	writeRemarks(b, Remarks(f))
	writeTable(b, f)
	writeMissing(b, f.Missing)
	b.WriteString("</section>\n")
}

// fewSentences is how many are shown before a fold.
const fewSentences = 6

// writeSentences writes what the figure says in words.
func writeSentences(b *strings.Builder, all []string) {
	if len(all) == 0 {
		return
	}
	list(b, "sentences", all[:min(len(all), fewSentences)])
	if len(all) > fewSentences {
		fmt.Fprintf(b, "<details><summary>%d more</summary>", len(all)-fewSentences)
		list(b, "sentences", all[fewSentences:])
		b.WriteString("</details>")
	}
}

// list writes sentences one below the other.
func list(b *strings.Builder, class string, sentences []string) {
	fmt.Fprintf(b, "<ul class=\"%s\">", class)
	for _, text := range sentences {
		fmt.Fprintf(b, "<li>%s</li>", html.EscapeString(text))
	}
	b.WriteString("</ul>")
}

// writeMissing writes what was not measured: each reason once.
func writeMissing(b *strings.Builder, list []Point) {
	if len(list) == 0 {
		return
	}
	var reasons []string
	cells := make(map[string][]string)
	for _, p := range list {
		reason := short(p.Failed)
		if cells[reason] == nil {
			reasons = append(reasons, reason)
		}
		cells[reason] = append(cells[reason], p.Cell.String())
	}
	b.WriteString("<h4>Not measured</h4><ul class=\"missing\">")
	for _, reason := range reasons {
		if all := cells[reason]; len(all) == 1 {
			fmt.Fprintf(b, "<li><b>%s</b>: %s</li>", html.EscapeString(all[0]), html.EscapeString(reason))
		} else {
			fmt.Fprintf(b, "<li>%s<details><summary>%d combinations</summary>%s</details></li>", html.EscapeString(reason), len(all), html.EscapeString(strings.Join(all, "; ")))
		}
	}
	b.WriteString("</ul>")
}

// title is an experiment's, with the metric if it does not say that itself.
func title(f Figure) string {
	if t := f.Experiment.Spec.Title; t != "" {
		if strings.Contains(strings.ToLower(t), f.Metric) {
			return t
		}
		return t + ": " + f.Metric
	}
	return f.Experiment.Name + ": " + f.Metric
}

func firstLine(text string) string {
	line, _, _ := strings.Cut(text, "\n")
	return line
}

// caption says what is not to be compared.
func caption(f Figure) string {
	mtus, depths, inlines := make(map[int]bool), make(map[int]bool), make(map[string]bool)
	trips := make(map[bool]bool)
	for _, l := range f.Lines {
		for _, p := range l.Points {
			if p.PathMTU != 0 {
				mtus[p.PathMTU] = true
			}
			if p.Depth != 0 {
				depths[p.Depth] = true
			}
			if p.Inline != "" {
				inlines[p.Inline] = true
			}
			trips[p.Tool.RoundTrip] = true
		}
	}
	text := ""
	if len(mtus) > 1 {
		text += "The path MTUs differ: see the table. "
	}
	if len(depths) > 1 || len(inlines) > 1 {
		text += "Depths or inline data differ: see the table. "
	}
	if f.Metric == experiment.Latency && len(trips) > 1 {
		text += "Reads are whole round trips, the others are halves. "
	}
	if limit, of := f.limit(); limit > 0 {
		text += fmt.Sprintf("The limit is %s: %s. ", experiment.Quantity(limit, f.Metric), of)
	}
	if len(f.Cited) > 0 {
		text += "What is published is thin and grey, and of other machines: compare shapes and ratios, not values. "
	}
	text += "Medians; bars are 95 % intervals of the median."
	return html.EscapeString(text)
}

// legend has a switch for each line.
func legend(b *strings.Builder, f Figure) {
	b.WriteString("<div class=\"legend\">")
	for i, l := range append(append([]Line(nil), f.Lines...), f.Cited...) {
		fmt.Fprintf(b, `<label class="%s"><input type="checkbox" checked data-line="%d"><svg viewBox="0 0 34 12"><polyline points="1,6 33,6"/>%s</svg>%s</label>`,
			lineClass(i, l), i, mark(i, 17, 6, l.Published), html.EscapeString(l.Name))
	}
	b.WriteString("</div>")
}

// writeTable writes every value of a figure, and the same as CSV inside of the page.
func writeTable(b *strings.Builder, f Figure) {
	if len(f.Lines) == 0 {
		return
	}
	unit, mixed := units(f)
	if !mixed {
		unit = " (" + unit + ")"
	}
	b.WriteString("<details><summary>Table</summary><div class=\"scroll\"><table><thead><tr><th>what</th><th>size</th><th>pairs</th><th>median</th><th>95 % interval</th>")
	if f.Metric == experiment.Latency {
		b.WriteString("<th>p99</th><th>p99.9</th>")
	}
	b.WriteString("<th>of the limit</th><th>slowest pair</th><th>rounds</th><th>path MTU</th><th>depth, inline</th>")
	var roles []string
	if f.Metric != experiment.CPU { // whose values are of roles
		roles = rolesOf([]Figure{f})
		fmt.Fprintf(b, "<th>CPU %s%s</th>", strings.Join(roles, "</th><th>"), unit)
	}
	b.WriteString("<th>what carried the bytes</th></tr></thead><tbody>")
	for _, l := range f.Lines {
		for i := range l.Points {
			p := &l.Points[i]
			size, mtu, depth := "", "", ""
			if p.Depth != 0 {
				depth = fmt.Sprint(p.Depth)
			}
			if p.Inline != "" {
				depth += ", " + p.Inline + " B"
			}
			if p.Cell.Size != 0 {
				size = p.Cell.Size.String()
			}
			if p.PathMTU != 0 {
				mtu = fmt.Sprint(p.PathMTU)
			}
			fmt.Fprintf(b, "<tr><td>%s</td><td>%s</td><td>%d</td><td>%s</td><td>%s to %s</td>", html.EscapeString(l.Name), size, p.Cell.Pairs,
				experiment.Quantity(p.Summary.Median, f.Metric), experiment.Quantity(p.Summary.Low, f.Metric), experiment.Quantity(p.Summary.High, f.Metric))
			if f.Metric == experiment.Latency {
				fmt.Fprintf(b, "<td>%s</td><td>%s</td>", percentile(p.P99), percentile(p.P999))
			}
			share, slowest, note := "", "", p.Proof
			if p.Limit > 0 && f.Metric == experiment.Bandwidth {
				share = fmt.Sprintf("%.0f %%", 100*p.Summary.Median/p.Limit)
			}
			if p.Slowest > 0 {
				slowest = fmt.Sprintf("%.0f %%", 100*p.Slowest)
			}
			if odd := p.oddity(f.Metric); odd != "" {
				note += "; odd: " + odd
			}
			fmt.Fprintf(b, "<td>%s</td><td>%s</td>", share, slowest)
			fmt.Fprintf(b, "<td>%d</td><td>%s</td><td>%s</td>", p.Summary.N, mtu, depth)
			for _, role := range roles {
				text := ""
				if v, counted := p.CPU[role]; counted {
					text = processorTime(p, v, mixed)
				}
				fmt.Fprintf(b, "<td>%s</td>", text)
			}
			fmt.Fprintf(b, "<td>%s</td></tr>", html.EscapeString(note))
		}
	}
	var csv strings.Builder
	writeCSV(&csv, []Figure{f}) // a strings.Builder does not fail
	fmt.Fprintf(b, "</tbody></table></div><p><a download=\"%s-%s.csv\" href=\"data:text/csv;base64,%s\">CSV</a></p></details>",
		html.EscapeString(f.Experiment.Name), f.Metric, base64.StdEncoding.EncodeToString([]byte(csv.String())))
}

// percentile is one of latencies; "": there is none.
func percentile(v float64) string {
	if v <= 0 {
		return ""
	}
	return experiment.Quantity(v, "p99")
}

// writeMethod says how it was measured.
func writeMethod(b *strings.Builder) {
	b.WriteString(`<section class="method"><h2>How it was measured</h2><ul>
<li>Every round runs all combinations once, in an order by chance: a noisy moment hits all of them alike.</li>
<li>Medians of rounds, with a bootstrap interval. A difference whose intervals overlap is called none.</li>
<li>One run gives value and processor time. Client and server are what the kernel charged those processes with, the daemons apart; rest is what the machine was busy with beyond these: the kernel's interrupts, and whatever else ran. Control groups have the same once more, in the results.</li>
<li>What carried the bytes is checked by the device's counters, for every value of a tool that moves some. What a port claims and how fast connections are made is not of that kind.</li>
<li>Runs during which the hypervisor took more than 5 % of the processors are repeated.</li>
<li>Bandwidth is measured by time, latency over ten thousand messages; between guests, which are emulated, over two hundred. A 99.9th percentile is of ten thousand messages at least, a 99th of a thousand.</li>
<li>Pairs of perftest all start, all report, and then one window is open for all; what was before and after is cut off.</li>
<li>A limit is drawn where one is near: the link if it has a rate, else a copy in this machine's memory.</li>
<li>Points that break the order of their neighbours by more than their intervals and 10 % are ringed, and bandwidths above the limit.</li>
</ul></section>`)
}
