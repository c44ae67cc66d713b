package report

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"vrdma.dev/vrdma/internal/instrument/experiment"
)

// findingSize is the message whose bandwidth the first finding compares.
const findingSize = 64 << 10

// Findings are what the first screen says: which is faster, what it costs, and how sure that is. chosen is the figure that shows the
// first one; nil: nothing was compared.
func Findings(figures []Figure) (list []string, chosen *Figure) {
	r, chosen := headline(figures)
	if chosen == nil {
		return nil, nil
	}
	ours, theirs := r.Ours, r.Against
	size := ours.Cell.Size.String()
	verdict := verdictOf(r)
	list = append(list, fmt.Sprintf("Speed: messages of %s, %s: %s with vrdma (%s, which %s), %s with %s (%s): %s.", size, between(ours.Cell),
		experiment.Quantity(ours.Summary.Median, r.Metric), ours.Cell.Tool, ours.Cell.Waiting(),
		experiment.Quantity(theirs.Summary.Median, r.Metric), r.name(), theirs.Cell.Tool, verdict)+latencyFinding(figures))
	list = append(list, "Cost: "+costFinding(ours, theirs))
	return append(list, "Certainty: "+certainty(r, figures)), chosen
}

// verdictOf says which of two is faster.
func verdictOf(r Ratio) string {
	switch {
	case !r.Sure:
		return "equal within the spread"
	case r.Factor >= 1:
		return "vrdma is " + times(r.Factor) + " faster"
	}
	return "vrdma is " + times(1/r.Factor) + " slower"
}

// latencyFinding compares the latency of a small message over polling verbs with TCP that polls too, between programs of one host. A
// program that polls against one that sleeps compares the ways of waiting, not the transports. It returns "" if that was not measured.
func latencyFinding(figures []Figure) string {
	for _, f := range figures {
		if f.Metric != experiment.Latency {
			continue
		}
		for _, r := range Ratios(f) {
			ours, theirs := r.Ours.Cell, r.Against.Cell
			if ours.Setting == experiment.Host && ours.Transport == experiment.Verbs && ours.Waiting() == experiment.Polls &&
				theirs.Transport == experiment.TCP && theirs.Waiting() == experiment.Polls {
				return fmt.Sprintf(" Against TCP that polls as well, half a round trip of %s on one host takes %s (%s) and %s (%s): %s.", ours.Size,
					experiment.Quantity(r.Ours.Summary.Median, r.Metric), ours.Tool, experiment.Quantity(r.Against.Summary.Median, r.Metric), theirs.Tool, verdictOf(r))
			}
		}
	}
	return ""
}

// between names a setting in a sentence.
func between(c experiment.Cell) string {
	switch c.Setting {
	case experiment.Containers:
		return "between containers"
	case experiment.Host:
		return "between programs of one host"
	}
	return "between " + where(c)
}

// headline returns the comparison of the first finding: bandwidth of 64 KiB between two programs, in containers if they were measured.
func headline(figures []Figure) (best Ratio, chosen *Figure) {
	order := []string{experiment.Containers, experiment.Hosts, experiment.Host}
	rank := len(order)
	for i := range figures {
		f := &figures[i]
		if f.Metric != experiment.Bandwidth {
			continue
		}
		for _, r := range Ratios(*f) {
			c := r.Ours.Cell
			at := slices.Index(order, c.Setting)
			plain := c.Transport == experiment.Verbs && c.Size == findingSize && c.Pairs == 1 && c.PerSide == 0 && c.Share == 0 && c.Rate == "" && c.Delay == "" && c.PathMTU == 0
			if plain && r.Against.Cell.Transport == experiment.TCP && at >= 0 && at < rank {
				rank, best, chosen = at, r, f
			}
		}
	}
	return best, chosen
}

// costFinding compares the processor time of a GiB.
func costFinding(ours, theirs *Point) string {
	spent := func(p *Point) float64 { return p.CPU["client"] + p.CPU["server"] + p.CPU["daemon"] }
	a, b := spent(ours), spent(theirs)
	if a == 0 || b == 0 || perWhat(&ours.Tool) != perWhat(&theirs.Tool) {
		return "processor time was not counted for both."
	}
	note := ""
	if ours.StartUp || theirs.StartUp {
		note = ", with the start of programs"
	}
	return fmt.Sprintf("a GiB takes %.2g core-seconds with vrdma and %.2g with TCP, of client, server and daemons%s. A program that polls is busy while it waits.", a, b, note)
}

// certainty describes the interval of the first finding, and how many comparisons of the whole report go either way.
func certainty(r Ratio, figures []Figure) string {
	text := "a single run, which proves nothing"
	if s := r.Ours.Summary; s.N > 1 {
		text = fmt.Sprintf("vrdma's %d rounds give %s (coverage %.0f %%), TCP's %d give %s", s.N, interval(s, r.Metric), 100*s.Coverage, r.Against.Summary.N, interval(r.Against.Summary, r.Metric))
	}
	better, worse, equal := 0, 0, 0
	var names []string
	for _, f := range figures {
		for _, other := range Ratios(f) {
			switch t := other.Ours.Cell.Transport; {
			case t != experiment.Verbs && t != experiment.Sockets:
			case !other.Sure:
				equal++
			case other.Factor >= 1:
				better++
			default:
				worse++
				if name := f.Experiment.Name; !slices.Contains(names, name) {
					names = append(names, name)
				}
			}
		}
	}
	text += fmt.Sprintf(". Of %s of this report, vrdma is better in %d, worse in %d, and equal within the spread in %d.", many(better+worse+equal, "comparison"), better, worse, equal)
	if len(names) > 0 {
		const most = 3
		more := ""
		if len(names) > most {
			more = fmt.Sprintf(" and %d more", len(names)-most)
		}
		text += " It is worse in " + strings.Join(names[:min(most, len(names))], ", ") + more + "."
	}
	return text
}

// source is the line of the first screen that says where the values are from.
func source(r *experiment.Results) string {
	m := r.Header.Machine
	return fmt.Sprintf("Measured on %s, %d processors, %s, with vrdma %s. Below: every figure, its data, its sources and its limits.",
		cmp.Or(m.Processor, "an unknown processor"), m.Processors, m.Kernel, r.Header.Program)
}
