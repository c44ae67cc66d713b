package experiment

import (
	"fmt"
	"time"
)

// A pace estimates the duration of the rest of a run. A cell takes as long as in other rounds, else as others of its kind, else as
// all. Estimates are medians, because the first cell of a setting also waits for its guests or containers to start.
type pace struct {
	known map[string][]time.Duration // durations by cell, by kind, and of all under ""
}

// names are the keys of a cell: the cell, its kind, all. They are computed once for each step, because the rest of a run is estimated
// before every step.
func (c Cell) names() []string {
	return []string{c.String(), fmt.Sprintf("%s %s %d", c.Setting, c.Tool, c.Pairs), ""}
}

// took records how long a cell with these names took. Failed cells do not count.
func (p *pace) took(names []string, d time.Duration, failed bool) {
	if p.known == nil {
		p.known = make(map[string][]time.Duration)
	}
	if failed {
		names = names[:1]
	}
	for _, name := range names {
		p.known[name] = append(p.known[name], d)
	}
}

// done records existing records. A step lasts until the next one begins.
func (p *pace) done(list []Record) {
	for i := range list {
		rec := &list[i]
		long := time.Duration(rec.Seconds * float64(time.Second))
		if i+1 < len(list) {
			if gap := list[i+1].Time.Sub(rec.Time); gap > long && gap <= mostCell {
				long = gap
			}
		}
		if long > 0 {
			p.took(rec.Cell.names(), long, rec.Failed != "")
		}
	}
}

// left estimates how long cells with these names take; 0: unknown.
func (p *pace) left(cells [][]string) (sum time.Duration) {
	for _, names := range cells {
		for _, name := range names {
			if list := p.known[name]; len(list) > 0 {
				sum += middle(list)
				break
			}
		}
	}
	return sum
}

func middle(list []time.Duration) time.Duration {
	values := make([]float64, len(list))
	for i, d := range list {
		values[i] = float64(d)
	}
	return time.Duration(Median(values))
}

// leftText is the estimate in words; "": unknown.
func (p *pace) leftText(cells [][]string) string {
	d := p.left(cells)
	if d == 0 {
		return ""
	}
	return fmt.Sprintf(", about %v left", d.Round(time.Second))
}
