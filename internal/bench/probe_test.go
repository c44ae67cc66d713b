package bench

import (
	"context"
	"errors"
	"io"
	"slices"
	"testing"
)

// scripted is a probe that gives these values, one after the other.
func scripted(values ...float64) Probe {
	return Probe{Name: "scripted", Unit: "/s", Measure: func(context.Context) (Reading, error) {
		if len(values) == 0 {
			return Reading{}, errors.New("no more")
		}
		v := values[0]
		values = values[1:]
		return Reading{Value: v}, nil
	}}
}

func TestRounds(t *testing.T) {
	tests := []struct {
		name   string
		probe  Probe
		want   []float64
		failed bool
	}{
		{"plain", scripted(1, 2), []float64{1, 2}, false},
		{"nothing measured at first", scripted(0, 0, 1, 0, 2), []float64{1, 2}, false},
		{"never", scripted(0, 0, 0, 0, 1), nil, true},
		{"a tool that fails", scripted(1), []float64{1}, true},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			series, err := Rounds(t.Context(), io.Discard, 2, []Probe{test.probe})
			if (err != nil) != test.failed || !slices.Equal(series[0].Values, test.want) {
				t.Errorf("got %v, %v, want %v, failed %v", series[0].Values, err, test.want, test.failed)
			}
		})
	}
}
