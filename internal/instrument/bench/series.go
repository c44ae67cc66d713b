package bench

import (
	"math"
	"slices"

	"vrdma.dev/vrdma/internal/instrument/drivers"
	"vrdma.dev/vrdma/internal/instrument/experiment"
)

// A Series is every number that one probe gave in a run.
type Series struct {
	Name   string    `json:"name"`
	Unit   string    `json:"unit"` // s, B/s, /s, B, %, ...
	Values []float64 `json:"values"`
	// Averages are the tool's own, where it gives one beside the median.
	Averages []float64 `json:"averages,omitempty"`
	// Failures are runs that gave no number, and why.
	Failures []string `json:"failures,omitempty"`
}

func (s *Series) add(r drivers.Reading) {
	s.Values = append(s.Values, r.Value)
	if r.Average != 0 && !math.IsInf(r.Average, 0) && !math.IsNaN(r.Average) { // perftest's, on a busy machine
		s.Averages = append(s.Averages, r.Average)
	}
}

// Median is the middle value, or 0 of nothing.
func (s *Series) Median() float64 {
	if len(s.Values) == 0 {
		return 0
	}
	return experiment.Median(s.Values)
}

// Average is the mean of the tool's averages, or of the values if it gave none.
func (s *Series) Average() float64 {
	values := s.Values
	if len(s.Averages) > 0 {
		values = s.Averages
	}
	if len(values) == 0 {
		return 0
	}
	sum := 0.0
	for _, v := range values {
		sum += v
	}
	return sum / float64(len(values))
}

// Range is the least and the greatest value.
func (s *Series) Range() (low, high float64) {
	if len(s.Values) == 0 {
		return 0, 0
	}
	return slices.Min(s.Values), slices.Max(s.Values)
}

// ratio is a/b, and infinite against nothing.
func ratio(a, b float64) float64 {
	if b == 0 {
		return math.Inf(1)
	}
	return a / b
}
