package report

import (
	"fmt"
	"math"
	"strings"

	"vrdma/internal/experiment"
	"vrdma/internal/order"
)

// verdicts say who wins by what factor: a sentence for each experiment, and in it for each setting and way of waiting.
func verdicts(figures []Figure) (out []string) {
	type group struct{ experiment, title, metric, transport, where, wait, against string }
	ratios := make(map[group][]Ratio)
	var kinds []group
	for _, f := range figures {
		for _, r := range Ratios(f) {
			if t := r.Ours.Cell.Transport; t != experiment.Verbs && t != experiment.Sockets {
				continue
			}
			g := group{f.Experiment.Name, title(f), f.Metric, r.Ours.Cell.Transport, where(r.Ours.Cell), "", r.name()}
			if g.transport == experiment.Verbs {
				g.wait = map[string]string{experiment.Poll: ", polling", experiment.Event: ", sleeping on events"}[r.Ours.Cell.Wait]
			}
			if ratios[g] == nil {
				kinds = append(kinds, g)
			}
			ratios[g] = append(ratios[g], r)
		}
	}
	if len(kinds) > 0 {
		out = append(out, "Factors by which vrdma is better, below 1 it is worse:")
	}
	for _, g := range kinds {
		what := map[string]string{experiment.Verbs: "verbs of vrdma", experiment.Sockets: "sockets over vrdma"}[g.transport]
		out = append(out, fmt.Sprintf("%s: %s, %s%s, against %s: %s.", g.title, g.where, what, g.wait, g.against, span(ratios[g])))
	}
	return out
}

// span is ratios in words: the lowest, the highest, their geometric mean, and of how many nothing can be said.
func span(list []Ratio) string {
	low, high, sum, unsure := math.Inf(1), 0.0, 0.0, 0
	for _, r := range list {
		low, high, sum = min(low, r.Factor), max(high, r.Factor), sum+math.Log(r.Factor)
		if !r.Sure {
			unsure++
		}
	}
	n := len(list)
	switch {
	case unsure == n:
		return fmt.Sprintf("no difference beyond the spread of the rounds (%s)", many(n, "value"))
	case n == 1:
		return multiple(low)
	case unsure > 0:
		return fmt.Sprintf("%s to %s, geometric mean %s (%d values, of which %d within the spread)", multiple(low), multiple(high), multiple(math.Exp(sum/float64(n))), n, unsure)
	}
	return fmt.Sprintf("%s to %s, geometric mean %s (%d values)", multiple(low), multiple(high), multiple(math.Exp(sum/float64(n))), n)
}

// multiple is a factor as a number, with as many digits as measuring allows.
func multiple(f float64) string {
	switch {
	case f >= 10:
		return fmt.Sprintf("%.0f x", f)
	case f >= 2:
		return fmt.Sprintf("%.1f x", f)
	}
	return fmt.Sprintf("%.2f x", f)
}

// many is a number of things.
func many(n int, thing string) string {
	if n == 1 {
		return "1 " + thing
	}
	return fmt.Sprintf("%d %ss", n, thing)
}

// costSentence is what a GiB costs here and in publications.
func costSentence(figures []Figure) string {
	t := costsTable(figures)
	if t == nil {
		return ""
	}
	var words []string
	for _, row := range t.rows {
		words = append(words, fmt.Sprintf("%s %s / %s / %s", row[0].text, row[1].text, row[2].text, row[3].text))
	}
	return "Core-seconds per GiB of the whole machine (in brackets: of client, server and daemons alone), 64 KiB, send / write / read: " + strings.Join(words, "; ") + ". The published ones are of both whole hosts."
}

// missing says what was not measured and why, the commonest reasons first.
func missing(figures []Figure) string {
	type cause struct{ where, why string }
	counts := make(map[cause]int)
	var reasons []cause
	for _, f := range figures {
		for _, p := range f.Missing {
			why := cause{where(p.Cell), short(p.Failed)}
			if counts[why] == 0 {
				reasons = append(reasons, why)
			}
			counts[why]++
		}
	}
	order.SortStableFunc(reasons, func(a, b cause) int { return counts[b] - counts[a] })
	if len(reasons) == 0 {
		return ""
	}
	const most = 4
	var words []string
	for i, r := range reasons {
		if i == most {
			words = append(words, "and for "+many(len(reasons)-most, "more reason")+", below")
			break
		}
		words = append(words, fmt.Sprintf("%s: %s (%s)", r.where, many(counts[r], "combination"), r.why))
	}
	return "Not measured: " + strings.Join(words, "; ") + "."
}
