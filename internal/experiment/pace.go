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

// names are a cell's, its kind's, and everybody's.
func (c Cell) names() []string {
	return []string{c.String(), fmt.Sprintf("%s %s %d", c.Setting, c.Tool, c.Pairs), ""}
}

// took is told how long a cell took.
func (p *pace) took(c Cell, d time.Duration) {
	if p.known == nil {
		p.known = make(map[string][]time.Duration)
	}
	for _, name := range c.names() {
		p.known[name] = append(p.known[name], d)
	}
}

// left is how long these cells may take; 0: nothing is known.
func (p *pace) left(cells []Cell) (sum time.Duration) {
	for _, c := range cells {
		for _, name := range c.names() {
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
func (p *pace) leftText(cells []Cell) string {
	d := p.left(cells)
	if d == 0 {
		return ""
	}
	return fmt.Sprintf(", about %v left", d.Round(time.Second))
}
