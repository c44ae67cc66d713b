package bench

import (
	"fmt"
	"math"
	"strings"

	"vrdma.dev/vrdma/internal/instrument/experiment"
)

// A Row is one line of the speed table: a median, perhaps as a ratio to another of
// the same run, and the bound it should keep.
type Row struct {
	What    string  `json:"what"`
	Ours    Series  `json:"ours"`
	Against *Series `json:"against,omitempty"` // nil: the bound is absolute
	Bound   float64 `json:"bound"`
	AtMost  bool    `json:"at_most"` // the bound is from above
	// Unbounded rows are there to be compared with; nothing was promised about them.
	Unbounded bool `json:"unbounded,omitempty"`
	// Aim is what we would like, beyond the bound or without one; 0: nothing more.
	Aim float64 `json:"aim,omitempty"`
	// Step is the least difference that can be measured; 0: any.
	Step float64 `json:"step,omitempty"`
	Note string  `json:"note,omitempty"`
	// Missing is why nothing was measured, and what to do about it.
	Missing string `json:"missing,omitempty"`

	// Filled in by Judge, for readers of the JSON.
	Measured float64 `json:"measured"` // a ratio, or the median itself
	Pass     bool    `json:"pass"`
}

// fill gives a row what was measured for it.
func (r *Row) fill(ours Series, against ...Series) {
	r.Ours = ours
	if len(against) > 0 {
		r.Against = &against[0]
	}
}

// subtract makes the row about how much more ours is than what it is against: the difference of medians, which may be below nothing
// where both are alike.
func (r *Row) subtract() {
	less := r.Against
	if less == nil {
		return // nothing was filled in
	}
	ours := Series{Name: r.Ours.Name + ", less " + less.Name, Unit: r.Ours.Unit}
	if r.measured() {
		with, without := r.Ours.Median(), less.Median()
		ours.Values = []float64{with - without}
		r.Note = fmt.Sprintf("medians of %d and %d: %s, and %s without", len(r.Ours.Values), len(less.Values), experiment.Amount(with, ours.Unit), experiment.Amount(without, ours.Unit))
	}
	r.mention(&r.Ours) // each by itself: of the difference there is one
	r.mention(less)
	r.Ours, r.Against = ours, nil
}

// Judge compares the medians with the bound.
func (r *Row) Judge() {
	r.mention(&r.Ours)
	r.mention(r.Against)
	if !r.measured() {
		return
	}
	r.Measured = r.Ours.Median()
	if r.Against != nil {
		r.Measured = ratio(r.Measured, r.Against.Median())
	}
	if math.IsInf(r.Measured, 0) { // JSON has no word for it
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

// measured reports whether there is something to judge.
func (r *Row) measured() bool {
	return len(r.Ours.Values) > 0 && (r.Against == nil || len(r.Against.Values) > 0)
}

// mention notes the runs of a series that failed.
func (r *Row) mention(s *Series) {
	if s == nil || len(s.Failures) == 0 {
		return
	}
	last := s.Failures[len(s.Failures)-1]
	text := fmt.Sprintf("%s failed in %d of %d runs: %s", s.Name, len(s.Failures), len(s.Failures)+len(s.Values), last)
	r.Note = strings.TrimPrefix(r.Note+"; "+text, "; ")
}

// text is v, which is measured or the bound, in the row's terms.
func (r *Row) text(v float64) string {
	if r.Against != nil {
		return fmt.Sprintf("%.3g x", v)
	}
	return experiment.Amount(v, r.Ours.Unit)
}

// result is what was measured, if anything was.
func (r *Row) result() string {
	if !r.measured() {
		return ""
	}
	return r.text(r.Measured)
}

func (r *Row) mark() string {
	switch {
	case r.Missing != "":
		return "not measured"
	case !r.measured():
		return "FAILED"
	case r.Unbounded:
		return ""
	case r.Pass:
		return "PASS"
	}
	return "MISS"
}

// bound is what the row should keep.
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
