package experiment

import (
	"fmt"
	"time"
)

// A pace says how long the rest of a run may take, by what was measured so far: a cell takes as long as it did in other rounds,
// else as others of its kind did, else as all did. Times are medians, because the first cell of a setting has to wait for its
// guests or containers, and the others have not.
type pace struct {
	known map[string][]time.Duration // of cells, of their kinds, and of all, whose name is empty
}

// names are a cell's, its kind's, and everybody's. They are made once for each step: the rest of a run is counted before every one.
func (c Cell) names() []string {
	return []string{c.String(), fmt.Sprintf("%s %s %d", c.Setting, c.Tool, c.Pairs), ""}
}

// took is told how long a cell of these names took. One that failed says nothing of others.
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

// done is told of records that are there already. A step takes until the next one begins, with what it had to start and to end.
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

// left is how long cells of these names may take; 0: nothing is known.
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

// leftText is how long the rest may take in words; "": nothing is known.
func (p *pace) leftText(cells [][]string) string {
	d := p.left(cells)
	if d == 0 {
		return ""
	}
	return fmt.Sprintf(", about %v left", d.Round(time.Second))
}
