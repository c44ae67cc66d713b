package experiment

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"math/rand/v2"
	"slices"
	"time"
)

// An Instrument measures cells. It rejects cells that it cannot measure, with an error that says why and what to do.
type Instrument interface {
	Measure(ctx context.Context, c Cell, seconds int) (Measurement, error)
}

// A Run measures experiments and writes records.
type Run struct {
	Experiments []*Experiment
	Instrument  Instrument
	Out         *Writer
	Progress    io.Writer
	Seed        uint64
	// Quick runs two rounds of a second each.
	Quick bool
	// Done are the existing records.
	Done []Record
}

// mostSteal is the share of processor time that a hypervisor may take during a run. A run that lost more is repeated, up to
// mostRepeats times.
const (
	mostSteal   = 0.05
	mostRepeats = 2
)

// ErrInterrupted means that the user interrupted the run. The records are kept.
var ErrInterrupted = errors.New("interrupted: what was measured is kept, and --resume goes on")

// ErrBusy means that a tool printed no valid value, as happens on a busy machine. Such a run is repeated.
var ErrBusy = errors.New("this machine may be too busy to measure on")

// A step is one cell in one round.
type step struct {
	experiment *Experiment
	cell       Cell
	round      int
	names      []string // of the cell, for the estimate
}

// A key identifies a step among records.
type key struct {
	experiment string
	cell       Cell
	round      int
}

// guestsPerSide is how many guests a side has; 0: no guests.
func (s step) guestsPerSide() int {
	if !Guests(s.cell.Setting) && s.cell.Setting != GuestRXE {
		return 0
	}
	return s.cell.ContainersPerSide()
}

// steps returns the steps in the order of measurement: round by round, each in random order. The order depends only on the seed, so
// that a resumed run continues with it.
func (r *Run) steps() []step {
	var list []step
	rnd := rand.New(rand.NewPCG(r.Seed, 1))
	rounds := 0
	for _, e := range r.Experiments {
		rounds = max(rounds, r.rounds(e))
	}
	for round := 1; round <= rounds; round++ {
		first := len(list)
		for _, e := range r.Experiments {
			if round > r.rounds(e) {
				continue
			}
			for _, c := range e.Cells() {
				list = append(list, step{e, c, round, c.names()})
			}
		}
		part := list[first:]
		rnd.Shuffle(len(part), func(i, j int) { part[i], part[j] = part[j], part[i] })
	}
	// Idle guests take memory and processor time, so no other setting is measured beside them: they come last, settings with many
	// guests after those with two.
	slices.SortStableFunc(list, func(a, b step) int { return a.guestsPerSide() - b.guestsPerSide() })
	return list
}

const (
	quickRounds  = 2
	quickSeconds = 1
)

func (r *Run) rounds(e *Experiment) int {
	if r.Quick {
		return min(e.Spec.Rounds, quickRounds)
	}
	return e.Spec.Rounds
}

func (r *Run) seconds(e *Experiment) int {
	if r.Quick {
		return quickSeconds
	}
	return e.Spec.Seconds
}

// hopeless is how often a cell may fail before it is skipped.
const hopeless = 2

// Go measures all steps. A cell that fails becomes a record with the reason. Only the end of ctx or a write error ends the run early.
func (r *Run) Go(ctx context.Context) error {
	done := make(map[key]bool)
	failed := make(map[key]int) // failures in all rounds
	for _, rec := range r.Done {
		done[key{rec.Experiment, rec.Cell, rec.Round}] = true
		if rec.Failed != "" {
			failed[key{rec.Experiment, rec.Cell, 0}]++
		}
	}
	steps := r.steps()
	open := func(s step) bool {
		return !done[key{s.experiment.Name, s.cell, s.round}] && failed[key{s.experiment.Name, s.cell, 0}] < hopeless
	}
	var p pace
	p.done(r.Done)
	for i, s := range steps {
		any := key{s.experiment.Name, s.cell, 0}
		if !open(s) {
			continue
		}
		var rest [][]string
		for _, s := range steps[i:] {
			if open(s) {
				rest = append(rest, s.names)
			}
		}
		fmt.Fprintf(r.Progress, "%d of %d%s: %s ", i+1, len(steps), p.leftText(rest), s.cell)
		begin := time.Now()
		rec, err := r.measure(ctx, s)
		if err != nil {
			fmt.Fprintln(r.Progress)
			return err
		}
		p.took(s.names, time.Since(begin), rec.Failed != "")
		if rec.Failed != "" {
			failed[any]++
			fmt.Fprintln(r.Progress, "failed:", rec.Failed)
		} else {
			fmt.Fprintln(r.Progress, headline(&rec))
		}
		if err := r.Out.Write(&rec); err != nil {
			return err
		}
	}
	return nil
}

// headline is the main value of a record.
func headline(r *Record) string {
	t, _ := FindTool(r.Cell.Tool)
	return Quantity(r.Values[t.Metric], t.Metric)
}

// measure runs a step. It repeats the run if the hypervisor took processors or the machine was too busy.
func (r *Run) measure(ctx context.Context, s step) (Record, error) {
	rec := Record{Experiment: s.experiment.Name, Cell: s.cell, Round: s.round}
	for ; ; rec.Repeated++ {
		rec.Time = time.Now()
		m, err := r.Instrument.Measure(ctx, s.cell, r.seconds(s.experiment))
		if ctx.Err() != nil {
			return rec, ErrInterrupted
		}
		if err == nil {
			err = sound(s.cell, &m)
		}
		rec.Measurement = m
		if errors.Is(err, ErrBusy) && rec.Repeated < mostRepeats {
			continue
		}
		if err != nil {
			rec.Failed, rec.Values = err.Error(), nil
			return rec, nil
		}
		if m.Steal <= mostSteal || rec.Repeated >= mostRepeats {
			return rec, nil
		}
	}
}

// sound rejects invalid values: perftest prints a bandwidth of 0 and an infinite latency if its estimate of the processor's frequency
// failed.
func sound(c Cell, m *Measurement) error {
	t, _ := FindTool(c.Tool)
	if v, ok := m.Values[t.Metric]; !ok || v <= 0 {
		return fmt.Errorf("%s gave no %s: %w", c.Tool, t.Metric, ErrBusy)
	}
	for name, v := range m.Values {
		if math.IsNaN(v) || math.IsInf(v, 0) || v < 0 {
			return fmt.Errorf("%s gave %v as %s: %w", c.Tool, v, name, ErrBusy)
		}
	}
	return nil
}
