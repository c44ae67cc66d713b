package report

import (
	"fmt"
	"slices"
	"strings"

	"vrdma.dev/vrdma/internal/instrument/experiment"
)

// ratio is the metric of a drawing of ratios.
const ratio = "ratio"

// ofPathMTUs returns a drawing of the ratio of the smallest path MTU to the largest where an experiment compares path MTUs: on bars of
// bandwidth a difference of five percent cannot be seen. nil: it does not compare them.
func (f *Figure) ofPathMTUs() *Figure {
	mtus := f.Experiment.Spec.PathMTU
	if len(mtus) < 2 || f.By != "" || f.Metric == experiment.CPU {
		return nil
	}
	small, large := slices.Min(mtus), slices.Max(mtus)
	drawn := &Figure{Experiment: f.Experiment, Metric: ratio}
	for _, l := range f.Lines {
		p := l.Points[0]
		if p.Cell.PathMTU != small {
			continue
		}
		other := p.Cell
		other.PathMTU = large
		for _, o := range f.Lines {
			if o.Points[0].Cell != other {
				continue
			}
			a, b := p.Summary, o.Points[0].Summary
			s := experiment.Summary{N: min(a.N, b.N), Median: a.Median / b.Median, Low: a.Low / b.High, High: a.High / b.Low}
			name := strings.Replace(l.Name, fmt.Sprintf("path MTU %d", small), fmt.Sprintf("path MTU %d / %d", small, large), 1)
			drawn.Lines = append(drawn.Lines, Curve{Name: name, Points: []Point{{Cell: p.Cell, Tool: p.Tool, Summary: s}}})
		}
	}
	if len(drawn.Lines) == 0 {
		return nil
	}
	return drawn
}

// drawing is what is drawn of a figure without panels.
func (f *Figure) drawing() *plotView {
	if r := f.ofPathMTUs(); r != nil {
		return newPlot(*r)
	}
	return newPlot(*f)
}
