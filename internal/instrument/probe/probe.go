package probe

import (
	"context"
	"fmt"
	"io"
	"math"

	"vrdma.dev/vrdma/internal/instrument/drivers"
	"vrdma.dev/vrdma/internal/instrument/experiment"
	"vrdma.dev/vrdma/internal/instrument/speedtable"
	"vrdma.dev/vrdma/internal/instrument/testbed"
)

// A Probe is one tool with fixed options.
type Probe struct {
	Name, Unit string
	Measure    func(context.Context) (drivers.Reading, error)

	// Skip says that nothing needs its numbers.
	Skip bool
	// Before is called before every run, even one that is skipped; may be nil.
	Before func()
}

// attempts is how often a probe without a result is tried.
const attempts = 4

// measure runs the probe until it returns a number. perftest prints a bandwidth of 0 and an infinite latency if its estimate of the
// processor's frequency failed, as happens on busy machines.
func (p *Probe) measure(ctx context.Context) (r drivers.Reading, err error) {
	for range attempts {
		if r, err = p.Measure(ctx); err != nil || r.Value > 0 && !math.IsInf(r.Value, 0) {
			return r, err
		}
	}
	return r, fmt.Errorf("%s measured %v, %d times: this machine is too busy to measure on", p.Name, r.Value, attempts)
}

// Baseline runs a program that prints one number.
func Baseline(l *testbed.Lab, name, unit, program string, args ...string) Probe {
	return Probe{
		Name: name, Unit: unit,
		Measure: func(ctx context.Context) (drivers.Reading, error) {
			numbers, err := l.Numbers(ctx, 1, append([]string{program}, args...)...)
			if err != nil {
				return drivers.Reading{}, err
			}
			return drivers.Reading{Value: numbers[0]}, nil
		},
	}
}

// MaxFailures is after how many failures a probe is no longer run.
const MaxFailures = 2

// Rounds runs all probes in turn, rounds times, and returns a series for each. A probe that fails has the reason in its series. Only
// the end of ctx is an error.
func Rounds(ctx context.Context, progress io.Writer, rounds int, probes []Probe) ([]speedtable.Series, error) {
	series := make([]speedtable.Series, len(probes))
	for i, p := range probes {
		series[i] = speedtable.Series{Name: p.Name, Unit: p.Unit}
	}
	for round := range rounds {
		for i, p := range probes {
			if p.Skip {
				continue
			}
			if p.Before != nil {
				p.Before()
			}
			if len(series[i].Failures) >= MaxFailures {
				continue
			}
			fmt.Fprintf(progress, "  round %d of %d: %s ", round+1, rounds, p.Name)
			reading, err := p.measure(ctx)
			switch {
			case ctx.Err() != nil:
				fmt.Fprintln(progress)
				return series, testbed.ErrInterrupted
			case err != nil:
				fmt.Fprintln(progress, "failed:", err)
				series[i].Failures = append(series[i].Failures, err.Error())
			default:
				fmt.Fprintln(progress, experiment.Amount(reading.Value, p.Unit))
				series[i].AddAveraged(reading.Value, reading.Average)
			}
		}
	}
	return series, nil
}
