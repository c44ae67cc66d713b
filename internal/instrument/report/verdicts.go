package report

import (
	"fmt"
	"math"
	"slices"
	"strings"

	"vrdma.dev/vrdma/internal/instrument/experiment"
)

// verdicts returns a sentence for each experiment and baseline with factors by setting and way of waiting. NetPIPE's bandwidth is the
// inverse of its latency and is left out.
func verdicts(figures []Figure) (out []string) {
	type group struct{ transport, where, wait, against string }
	told := make(map[string]string) // by experiment
	for _, f := range figures {
		ratios := make(map[group][]Ratio)
		var kinds []group
		var names []string
		for _, r := range Ratios(f) {
			t := r.Ours.Cell.Transport
			if t != experiment.Verbs && t != experiment.Sockets {
				continue
			}
			g := group{map[string]string{experiment.Verbs: "verbs", experiment.Sockets: "sockets over vrdma"}[t], where(r.Ours.Cell), "", r.name()}
			g.wait = ", " + r.Ours.Cell.Waiting()
			if ratios[g] == nil {
				kinds = append(kinds, g)
			}
			if ratios[g] = append(ratios[g], r); !slices.Contains(names, g.against) {
				names = append(names, g.against)
			}
		}
		var sentences []string
		for _, against := range names {
			var words []string
			for _, g := range kinds {
				if g.against == against {
					words = append(words, fmt.Sprintf("%s, %s%s: %s", g.where, g.transport, g.wait, span(ratios[g])))
				}
			}
			sentences = append(sentences, fmt.Sprintf("against %s: %s.", against, strings.Join(words, "; ")))
		}
		text := strings.Join(sentences, " ")
		if text == "" || told[f.Experiment.Name] == text {
			continue
		}
		told[f.Experiment.Name] = text
		for _, s := range sentences {
			out = append(out, title(f)+", "+s)
		}
	}
	return out
}

// span describes ratios: the lowest, the highest, their geometric mean, and how many are within the spread.
func span(list []Ratio) string {
	low, high, sum, unsure := math.Inf(1), 0.0, 0.0, 0
	for _, r := range list {
		low, high, sum = min(low, r.Factor), max(high, r.Factor), sum+math.Log(r.Factor)
		if !r.Sure {
			unsure++
		}
	}
	n := len(list)
	within := ""
	if unsure > 0 {
		within = fmt.Sprintf(", of which %d within the spread", unsure)
	}
	switch {
	case unsure == n:
		return fmt.Sprintf("no difference beyond the spread of the rounds (%s)", many(n, "value"))
	case n == 1:
		return multiple(low)
	case multiple(low) == multiple(high):
		return fmt.Sprintf("%s (%d values%s)", multiple(low), n, within)
	}
	return fmt.Sprintf("%s to %s, geometric mean %s (%d values%s)", multiple(low), multiple(high), multiple(math.Exp(sum/float64(n))), n, within)
}

// multiple formats a factor.
func multiple(f float64) string {
	switch {
	case f >= 10:
		return fmt.Sprintf("%.0f x", f)
	case f >= 2:
		return fmt.Sprintf("%.1f x", f)
	}
	return fmt.Sprintf("%.2f x", f)
}

// many formats a number of things.
func many(n int, thing string) string {
	if n == 1 {
		return "1 " + thing
	}
	return fmt.Sprintf("%d %ss", n, thing)
}

// costSentence compares the cost of a GiB with publications.
func costSentence(figures []Figure) string {
	t := costsTable(figures)
	if t == nil {
		return ""
	}
	var words []string
	for _, row := range t.rows {
		words = append(words, fmt.Sprintf("%s %s / %s / %s", row[0].text, row[1].text, row[2].text, row[3].text))
	}
	return "Core-seconds of the whole machine (in brackets: of client, server and daemons alone), 64 KiB, send / write / read: " + strings.Join(words, "; ") + ". The published ones are of both whole hosts."
}

// missing lists what was not measured and why, the most frequent reasons first.
func missing(figures []Figure) (out []string) {
	type cause struct{ where, why string }
	counts := make(map[cause]int)
	over := make(map[cause][]string)
	var reasons []cause
	for _, f := range figures {
		for _, p := range f.Missing {
			why := cause{where(p.Cell), short(p.Failed)}
			if counts[why] == 0 {
				reasons = append(reasons, why)
			}
			counts[why]++
			if t := p.Cell.Transport; t != "" && !slices.Contains(over[why], t) {
				over[why] = append(over[why], t)
			}
		}
	}
	slices.SortStableFunc(reasons, func(a, b cause) int { return counts[b] - counts[a] })
	const most = 4
	for i, r := range reasons {
		if i == most {
			return append(out, "And for "+many(len(reasons)-most, "more reason")+", below.")
		}
		who := r.where
		if len(over[r]) > 0 {
			who += " (" + strings.Join(over[r], ", ") + ")"
		}
		text := fmt.Sprintf("%s, %s: %s.", who, many(counts[r], "combination"), strings.TrimSuffix(r.why, "."))
		out = append(out, strings.ToUpper(text[:1])+text[1:])
	}
	return out
}
