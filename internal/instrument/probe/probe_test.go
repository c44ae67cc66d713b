package probe

import (
	"context"
	"errors"
	"io"
	"math"
	"slices"
	"testing"

	"vrdma.dev/vrdma/internal/instrument/drivers"
	"vrdma.dev/vrdma/internal/instrument/testbed"
)

// scripted is a probe that returns these values in order.
func scripted(values ...float64) Probe {
	return Probe{Name: "scripted", Unit: "/s", Measure: func(context.Context) (drivers.Reading, error) {
		if len(values) == 0 {
			return drivers.Reading{}, errors.New("no more")
		}
		v := values[0]
		values = values[1:]
		return drivers.Reading{Value: v}, nil
	}}
}

func TestRounds(t *testing.T) {
	tests := []struct {
		name     string
		probe    Probe
		want     []float64
		failures int
	}{
		{"plain", scripted(1, 2, 3), []float64{1, 2, 3}, 0},
		{"nothing measured at first", scripted(0, 0, 1, 0, 2, 3), []float64{1, 2, 3}, 0},
		{"an infinite one", scripted(math.Inf(1), 1, 2, 3), []float64{1, 2, 3}, 0},
		{"a tool that fails at last", scripted(1, 2), []float64{1, 2}, 1},
		{"a tool that fails is not tried for ever", scripted(0, 0, 0, 0, 0, 0, 0, 0, 1), nil, 2},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			series, err := Rounds(t.Context(), io.Discard, 3, []Probe{test.probe, scripted(7, 8, 9)})
			if err != nil || !slices.Equal(series[0].Values, test.want) || len(series[0].Failures) != test.failures {
				t.Errorf("got %+v, %v, want %v and %d failures", series[0], err, test.want, test.failures)
			}
			if !slices.Equal(series[1].Values, []float64{7, 8, 9}) {
				t.Errorf("the probe beside it got %v, want all its values", series[1].Values)
			}
		})
	}
}

func TestRoundsInterrupted(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	p := Probe{Name: "interrupted", Measure: func(context.Context) (drivers.Reading, error) {
		cancel()
		return drivers.Reading{}, errors.New("killed")
	}}
	if _, err := Rounds(ctx, io.Discard, 3, []Probe{p}); err != testbed.ErrInterrupted {
		t.Errorf("got %v, want %v", err, testbed.ErrInterrupted)
	}
}
