package bench

import (
	"fmt"
	"math"
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
	Unbounded bool   `json:"unbounded,omitempty"`
	Note      string `json:"note,omitempty"`

	// Filled in by Judge, for readers of the JSON.
	Measured float64 `json:"measured"` // a ratio, or the median itself
	Pass     bool    `json:"pass"`
}

// Judge compares the medians with the bound.
func (r *Row) Judge() {
	r.Measured = r.Ours.Median()
	if r.Against != nil {
		r.Measured = ratio(r.Measured, r.Against.Median())
	}
	if r.AtMost {
		r.Pass = r.Measured <= r.Bound
	} else {
		r.Pass = r.Measured >= r.Bound
	}
	r.Pass = r.Pass && !r.Unbounded && len(r.Ours.Values) > 0 && !math.IsInf(r.Measured, 0)
}

// text is v, which is measured or the bound, in the row's terms.
func (r *Row) text(v float64) string {
	if r.Against != nil {
		return fmt.Sprintf("%.3g x", v)
	}
	return Quantity(v, r.Ours.Unit)
}

func (r *Row) mark() string {
	switch {
	case r.Unbounded:
		return ""
	case r.Pass:
		return "PASS"
	}
	return "MISS"
}

func (r *Row) bound() string {
	switch {
	case r.Unbounded:
		return ""
	case r.AtMost:
		return "<= " + r.text(r.Bound)
	}
	return ">= " + r.text(r.Bound)
}
