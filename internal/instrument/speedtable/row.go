package speedtable

import (
	"fmt"
	"math"
	"strings"

	"vrdma.dev/vrdma/internal/instrument/experiment"
)

// A Row is one line of the speed table: a median, or its ratio to another median of the same run, and a bound.
type Row struct {
	What    string  `json:"what"`
	Ours    Series  `json:"ours"`
	Against *Series `json:"against,omitempty"` // nil: the bound is absolute
	Bound   float64 `json:"bound"`
	AtMost  bool    `json:"at_most"` // the bound is an upper bound
	// Unbounded rows have no bound and are for information.
	Unbounded bool `json:"unbounded,omitempty"`
	// Aim is a goal beyond the bound, or without one; 0: none.
	Aim float64 `json:"aim,omitempty"`
	// Step is the smallest measurable difference; 0: any.
	Step float64 `json:"step,omitempty"`
	Note string  `json:"note,omitempty"`
	// Missing is why the row was not measured, and what to do about it.
	Missing string `json:"missing,omitempty"`

	// Set by Judge, for readers of the JSON.
	Measured float64 `json:"measured"` // a ratio, or the median itself
	Pass     bool    `json:"pass"`
}

// Fill sets the series of a row.
func (r *Row) Fill(ours Series, against ...Series) {
	r.Ours = ours
	if len(against) > 0 {
		r.Against = &against[0]
	}
}

// Subtract turns the row into the difference of its two medians. It may be negative if both are equal.
func (r *Row) Subtract() {
	less := r.Against
	if less == nil {
		return // not filled
	}
	ours := Series{Name: r.Ours.Name + ", less " + less.Name, Unit: r.Ours.Unit}
	if r.HasValues() {
		with, without := r.Ours.Median(), less.Median()
		ours.Values = []float64{with - without}
		r.Note = fmt.Sprintf("medians of %d and %d: %s, and %s without", len(r.Ours.Values), len(less.Values), experiment.Amount(with, ours.Unit), experiment.Amount(without, ours.Unit))
	}
	r.mention(&r.Ours) // before they are replaced by the difference
	r.mention(less)
	r.Ours, r.Against = ours, nil
}

// Judge compares the medians with the bound.
func (r *Row) Judge() {
	r.mention(&r.Ours)
	r.mention(r.Against)
	if !r.HasValues() {
		return
	}
	r.Measured = r.Ours.Median()
	if r.Against != nil {
		r.Measured = Ratio(r.Measured, r.Against.Median())
	}
	if math.IsInf(r.Measured, 0) { // JSON has no infinity
		r.Measured = 0
		return
	}
	if r.AtMost {
		r.Pass = r.Measured <= r.Bound
	} else {
		r.Pass = r.Measured >= r.Bound
	}
	r.Pass = r.Pass && !r.Unbounded
}

// HasValues reports whether the row has values.
func (r *Row) HasValues() bool {
	return len(r.Ours.Values) > 0 && (r.Against == nil || len(r.Against.Values) > 0)
}

// mention notes the failed runs of a series.
func (r *Row) mention(s *Series) {
	if s == nil || len(s.Failures) == 0 {
		return
	}
	last := s.Failures[len(s.Failures)-1]
	text := fmt.Sprintf("%s failed in %d of %d runs: %s", s.Name, len(s.Failures), len(s.Failures)+len(s.Values), last)
	r.Note = strings.TrimPrefix(r.Note+"; "+text, "; ")
}

// text prints v, a result or a bound, in the row's unit.
func (r *Row) text(v float64) string {
	if r.Against != nil {
		return fmt.Sprintf("%.3g x", v)
	}
	return experiment.Amount(v, r.Ours.Unit)
}

// result prints the result; "": there is none.
func (r *Row) result() string {
	if !r.HasValues() {
		return ""
	}
	return r.text(r.Measured)
}

func (r *Row) mark() string {
	switch {
	case r.Missing != "":
		return "not measured"
	case !r.HasValues():
		return "FAILED"
	case r.Unbounded:
		return ""
	case r.Pass:
		return "PASS"
	}
	return "MISS"
}

// bound prints the bound and the aim.
func (r *Row) bound() string {
	sign := ">= "
	if r.AtMost {
		sign = "<= "
	}
	var parts []string
	if !r.Unbounded {
		parts = append(parts, sign+r.text(r.Bound))
	}
	if r.Aim != 0 {
		parts = append(parts, "aim "+sign+r.text(r.Aim))
	}
	return strings.Join(parts, ", ")
}
