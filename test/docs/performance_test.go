package docs

import (
	"encoding/json"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// results is the file that `vrdma bench --out` writes, as far as the page uses it.
type results struct {
	Time, Version, Source string
	Machine               struct {
		CPU, Kernel string
		CPUs        int
	}
	Rows []struct {
		What      string
		Ours      series
		Against   *series
		Bound     float64
		AtMost    bool `json:"at_most"`
		Unbounded bool
		Note      string
		Measured  float64
		Pass      bool
	}
}

type series struct {
	Name, Unit string
	Values     []float64
}

// mostTable is how long the table may be: a run of all parts has more rows than a reader wants.
const mostTable = 6000

// TestPerformance: the table of docs/explanation/performance.md is that of docs/report/bench.json.
func TestPerformance(t *testing.T) {
	text, err := os.ReadFile(filepath.Join(Root(), "docs/report/bench.json"))
	if err != nil {
		t.Fatal(err)
	}
	var r results
	if err := json.Unmarshal(text, &r); err != nil {
		t.Fatal(err)
	}
	var b strings.Builder
	day, _, _ := strings.Cut(r.Time, "T")
	fmt.Fprintf(&b, "vrdma %s, %s; %s, %d CPUs, %s.", r.Version, day, r.Machine.CPU, r.Machine.CPUs, r.Machine.Kernel)
	if r.Source != "" {
		fmt.Fprintf(&b, " Source: %s.", r.Source)
	}
	b.WriteString("\n\n| what | vrdma | against | measured | wanted | |\n|---|---|---|---|---|---|\n")
	left := 0
	for _, row := range r.Rows {
		if len(row.Ours.Values) == 0 || row.Against != nil && len(row.Against.Values) == 0 {
			continue
		}
		if b.Len() > mostTable || row.Unbounded && row.Against == nil {
			left++
			continue
		}
		against, show := "", func(v float64) string { return quantity(v, row.Ours.Unit) }
		if row.Against != nil {
			against = row.Against.Name + ": " + quantity(median(row.Against.Values), row.Ours.Unit)
			show = func(v float64) string { return fmt.Sprintf("%.3g x", v) }
		}
		bound, mark := "", ""
		if !row.Unbounded {
			bound, mark = "≥ "+show(row.Bound), "**missed**"
			if row.AtMost {
				bound = "≤ " + show(row.Bound)
			}
			if row.Pass {
				mark = "met"
			}
		}
		fmt.Fprintf(&b, "| %s | %s | %s | %s | %s | %s |\n", row.What, quantity(median(row.Ours.Values), row.Ours.Unit), against, show(row.Measured), bound, mark)
	}
	if left > 0 {
		fmt.Fprintf(&b, "\n%d more rows are in the file.\n", left)
	}
	CheckPart(t, "docs/explanation/performance.md", "results", b.String())
}

func median(values []float64) float64 {
	sorted := slices.Sorted(slices.Values(values))
	n := len(sorted)
	return (sorted[(n-1)/2] + sorted[n/2]) / 2
}

// quantity is a number with its unit.
func quantity(v float64, unit string) string {
	switch unit {
	case "s":
		switch {
		case math.Abs(v) < 1e-3:
			return fmt.Sprintf("%.3g µs", v*1e6)
		case math.Abs(v) < 1:
			return fmt.Sprintf("%.3g ms", v*1e3)
		}
		return fmt.Sprintf("%.3g s", v)
	case "B/s", "/s":
		for _, scale := range []struct {
			least float64
			name  string
		}{{1e9, " G"}, {1e6, " M"}, {1e4, " k"}} {
			if v >= scale.least {
				return fmt.Sprintf("%.3g", v/scale.least*rest(scale.least)) + scale.name + unit
			}
		}
		return fmt.Sprintf("%.4g %s", v, unit)
	case "B":
		if v >= 1<<20 {
			return fmt.Sprintf("%.3g MiB", v/(1<<20))
		}
		return fmt.Sprintf("%.3g KiB", v/1024)
	case "%":
		return fmt.Sprintf("%.2g %%", v)
	}
	return fmt.Sprintf("%.3g %s", v, unit)
}

// rest is 10 for thousands, which begin at 10 000.
func rest(least float64) float64 {
	if least == 1e4 {
		return 10
	}
	return 1
}
