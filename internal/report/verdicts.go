package report

import (
	"fmt"
	"math"
	"strings"

	"vrdma/internal/experiment"
)

// verdicts say who wins by what factor: a sentence for each thing that was compared, in each setting.
func verdicts(figures []Figure) (out []string) {
	type group struct{ metric, transport, where, against string }
	factors := make(map[group][]float64)
	var order []group
	for _, f := range figures {
		for _, r := range Ratios(f) {
			if t := r.Ours.Cell.Transport; t != experiment.Verbs && t != experiment.Sockets {
				continue
			}
			g := group{f.Metric, r.Ours.Cell.Transport, where(r.Ours.Cell), r.name()}
			if factors[g] == nil {
				order = append(order, g)
			}
			factors[g] = append(factors[g], r.Factor)
		}
	}
	for _, g := range order {
		what := map[string]string{experiment.Verbs: "verbs of vrdma", experiment.Sockets: "sockets over vrdma"}[g.transport]
		out = append(out, fmt.Sprintf("%s, %s, %s against %s: %s.", capital(g.metric), g.where, what, g.against, span(factors[g])))
	}
	return out
}

// span is factors in words: the lowest, the highest, and their geometric mean.
func span(factors []float64) string {
	low, high, sum := math.Inf(1), 0.0, 0.0
	for _, f := range factors {
		low, high, sum = min(low, f), max(high, f), sum+math.Log(f)
	}
	word := func(f float64) string {
		if f < 1 {
			return times(1/f) + " worse"
		}
		return times(f) + " better"
	}
	if len(factors) == 1 {
		return word(low)
	}
	return fmt.Sprintf("%s to %s, %s on the whole (geometric mean of %d)", word(low), word(high), word(math.Exp(sum/float64(len(factors)))), len(factors))
}

func capital(text string) string { return strings.ToUpper(text[:1]) + text[1:] }

// costSentence is what a GiB costs here and in publications.
func costSentence(figures []Figure) string {
	t := costsTable(figures)
	if t == nil {
		return ""
	}
	var words []string
	for _, row := range t.rows {
		words = append(words, fmt.Sprintf("%s %s/%s/%s", row[0].text, row[1].text, row[2].text, row[3].text))
	}
	return "Core-seconds per GiB, 64 KiB, send/write/read: " + strings.Join(words, "; ") + "."
}

// missing says what was not measured and why, the commonest reasons first.
func missing(figures []Figure) string {
	counts := make(map[string]int)
	var reasons []string
	for _, f := range figures {
		for _, p := range f.Missing {
			why := fmt.Sprintf("%s (%s)", where(p.Cell), short(p.Failed))
			if counts[why] == 0 {
				reasons = append(reasons, why)
			}
			counts[why]++
		}
	}
	if len(reasons) == 0 {
		return ""
	}
	const most = 4
	var words []string
	for i, why := range reasons {
		if i == most {
			words = append(words, fmt.Sprintf("and %d more reasons, below", len(reasons)-most))
			break
		}
		words = append(words, fmt.Sprintf("%d of %s", counts[why], why))
	}
	return "Not measured: " + strings.Join(words, "; ") + "."
}
