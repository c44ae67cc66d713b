package speedtable

import (
	"math"
	"slices"

	"vrdma.dev/vrdma/internal/instrument/experiment"
)

// A Series is all numbers that one probe returned in a run.
type Series struct {
	Name   string    `json:"name"`
	Unit   string    `json:"unit"` // s, B/s, /s, B, %, ...
	Values []float64 `json:"values"`
	// Averages are the tool's own averages, where it prints one.
	Averages []float64 `json:"averages,omitempty"`
	// Failures are the errors of runs without a number.
	Failures []string `json:"failures,omitempty"`
}

// Add appends a value.
func (s *Series) Add(value float64) { s.Values = append(s.Values, value) }

// AddAveraged appends a value and the average that the tool printed with it; 0: none.
func (s *Series) AddAveraged(value, average float64) {
	s.Add(value)
	if average != 0 && !math.IsInf(average, 0) && !math.IsNaN(average) { // perftest prints these on a busy machine
		s.Averages = append(s.Averages, average)
	}
}

// Median returns the median; 0 without values.
func (s *Series) Median() float64 {
	if len(s.Values) == 0 {
		return 0
	}
	return experiment.Median(s.Values)
}

// Average returns the mean of the tool's averages, or of the values if it printed none.
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

// Range returns the lowest and the highest value.
func (s *Series) Range() (low, high float64) {
	if len(s.Values) == 0 {
		return 0, 0
	}
	return slices.Min(s.Values), slices.Max(s.Values)
}

// Ratio returns a/b, infinite if b is 0.
func Ratio(a, b float64) float64 {
	if b == 0 {
		return math.Inf(1)
	}
	return a / b
}
