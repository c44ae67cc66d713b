package report

import (
	"fmt"
	"io"
	"slices"
	"text/tabwriter"

	"vrdma.dev/vrdma/internal/instrument/experiment"
)

// significant is the probability below which a difference is reported.
const significant = 0.05

// Compare writes the differences between two sets of results by cell, as benchstat does. The sets were measured at different times, so
// a change of the machine also appears. The last line says how many values the two agree on: those whose intervals overlap.
func Compare(w io.Writer, before, after *experiment.Results) error {
	if before.Header.Machine.Processor != after.Header.Machine.Processor || before.Header.Machine.Kernel != after.Header.Machine.Kernel {
		fmt.Fprintf(w, "the machines differ: %s, %s; %s, %s\n", before.Header.Machine.Processor, before.Header.Machine.Kernel, after.Header.Machine.Processor, after.Header.Machine.Kernel)
	}
	old, err := Gather(before)
	if err != nil {
		return err
	}
	now, err := Gather(after)
	if err != nil {
		return err
	}
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(t, "EXPERIMENT\tWHAT\tBEFORE\tAFTER\tCHANGE")
	both, overlap := 0, 0
	var widths []float64
	for _, f := range now {
		for _, l := range f.Lines {
			for _, p := range l.Points {
				o, found := find(old, f, p.Cell)
				if !found {
					continue
				}
				both++
				if a, b := o.Summary, p.Summary; a.Low <= b.High && b.Low <= a.High {
					overlap++
				}
				widths = append(widths, width(o.Summary), width(p.Summary))
				fmt.Fprintf(t, "%s\t%s\t%s\t%s\t%s\n", f.Experiment.Name, p.Cell, deviation(o, f.Metric), deviation(p, f.Metric), change(o, p))
			}
		}
	}
	if both == 0 {
		return fmt.Errorf("the two have no cell in common: nothing can be compared")
	}
	if err := t.Flush(); err != nil {
		return err
	}
	slices.Sort(widths)
	_, err = fmt.Fprintf(w, "\n%d of %d values (%.1f %%) have intervals that overlap; the median width of an interval is %.1f %% of its median\n",
		overlap, both, 100*float64(overlap)/float64(both), 100*widths[len(widths)/2])
	return err
}

// width returns the width of an interval as a share of the median.
func width(s experiment.Summary) float64 {
	if s.Median == 0 {
		return 0
	}
	return (s.High - s.Low) / s.Median
}

// find returns the point of the same cell of the same experiment.
func find(figures []Figure, like Figure, c experiment.Cell) (Point, bool) {
	for _, f := range figures {
		if f.Experiment.Name != like.Experiment.Name || f.Metric != like.Metric {
			continue
		}
		for _, l := range f.Lines {
			for _, p := range l.Points {
				if p.Cell == c {
					return p, true
				}
			}
		}
	}
	return Point{}, false
}

// deviation formats a median with the larger half of its interval in percent.
func deviation(p Point, metric string) string {
	s := p.Summary
	return fmt.Sprintf("%s ± %.0f %%", experiment.Quantity(s.Median, metric), 100*max(s.High-s.Median, s.Median-s.Low)/s.Median)
}

// change formats the difference in percent if it is significant.
func change(before, after Point) string {
	p := experiment.Different(before.Values, after.Values)
	text := fmt.Sprintf("(p=%.3f n=%d+%d)", p, before.Summary.N, after.Summary.N)
	if p > significant {
		return "~ " + text
	}
	return fmt.Sprintf("%+.1f %% %s", 100*(after.Summary.Median/before.Summary.Median-1), text)
}
