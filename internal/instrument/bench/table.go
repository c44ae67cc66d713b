package bench

import (
	"context"
	"fmt"
	"io"
	"regexp"
	"slices"
	"time"

	"vrdma.dev/vrdma/internal/instrument/probe"
	"vrdma.dev/vrdma/internal/instrument/speedtable"
	"vrdma.dev/vrdma/internal/instrument/testbed"
)

// Message sizes of the speed table.
const (
	smallMessage = 8
	latencySize  = 64
	bulkSize     = 64 << 10
)

// A Table measures the rows of the speed table.
type Table struct {
	Lab      *testbed.Lab
	Progress io.Writer
	Rounds   int
	Source   string   // the repository, for guests and allocation tests; empty: they are left out
	Only     []string // names of parts; empty: all except those that must be named
	Kernel   string   // a device of the kernel's rxe, for part rxe
	// Rows matches the names of the rows to measure; nil: all.
	Rows *regexp.Regexp

	daemon *testbed.Daemon // of this host
	// A table of a Comparison measures only vrdma's side of its rows, and calls turn before every measurement.
	oursOnly bool
	turn     func()
}

// A part is a group of rows that are measured together. The rows exist before the measurement, so that each can say why it is missing.
type part struct {
	name    string
	rows    []speedtable.Row
	measure func(context.Context, []speedtable.Row) error
	asked   bool // measured only if it is named
	single  bool // says nothing about a build, so --against leaves it out
}

// parts returns all parts in order.
func (t *Table) parts() []part {
	return []part{t.local(), t.memory(), t.connections(), t.sockets(), t.goPrograms(), t.copies(), t.network(), t.overlay(), t.containers(), t.waiting(), t.qos(), t.guest(), t.vms(), t.rxe(), t.upgrades(), t.moves(), t.loops(), t.allocations()}
}

// Parts returns the names that Only may have.
func Parts() []string {
	var names []string
	for _, p := range new(Table).parts() {
		names = append(names, p.name)
	}
	return names
}

// together makes one part of several. A part that cannot be measured does not prevent the others.
func (t *Table) together(name string, pieces ...part) part {
	whole := part{name: name}
	for _, piece := range pieces {
		whole.rows = append(whole.rows, piece.rows...)
	}
	whole.measure = func(ctx context.Context, rows []speedtable.Row) error {
		for _, piece := range pieces {
			piece.rows, rows = rows[:len(piece.rows)], rows[len(piece.rows):]
			if t.want(piece.rows...) {
				t.measure(ctx, piece)
			}
			if ctx.Err() != nil {
				return testbed.ErrInterrupted
			}
		}
		return nil
	}
	return whole
}

// ratioRow is a row with a lower bound on a ratio.
func ratioRow(what string, bound float64) speedtable.Row {
	return speedtable.Row{What: what, Bound: bound, Against: &speedtable.Series{}}
}

// ratioAtMost is a row with an upper bound on a ratio.
func ratioAtMost(what string, bound float64) speedtable.Row {
	return speedtable.Row{What: what, Bound: bound, Against: &speedtable.Series{}, AtMost: true}
}

// want reports whether one of the rows is to be measured.
func (t *Table) want(rows ...speedtable.Row) bool {
	for i := range rows {
		if t.Rows == nil || t.Rows.MatchString(rows[i].What) {
			return true
		}
	}
	return false
}

// chosen returns the parts that have wanted rows.
func (t *Table) chosen() []part {
	var chosen []part
	for _, p := range t.parts() {
		named := slices.Contains(t.Only, p.name) || len(t.Only) == 0 && !p.asked
		if named && t.want(p.rows...) {
			chosen = append(chosen, p)
		}
	}
	return chosen
}

// Any reports whether there is anything to measure.
func (t *Table) Any() bool { return len(t.chosen()) > 0 }

// Run measures the parts. Rows that cannot be measured and tools that fail have the reason in the report. Only the end of ctx is an
// error.
func (t *Table) Run(ctx context.Context, version string) (*speedtable.Report, error) {
	report := &speedtable.Report{Time: time.Now(), Version: version, Machine: speedtable.ThisMachine()}
	defer t.stop()
	for _, p := range t.chosen() {
		fmt.Fprintf(t.Progress, "%s:\n", p.name)
		t.measure(ctx, p)
		if ctx.Err() != nil {
			return nil, testbed.ErrInterrupted
		}
		for _, row := range p.rows {
			if t.want(row) {
				row.Judge()
				report.Rows = append(report.Rows, row)
			}
		}
	}
	return report, nil
}

// measure fills the rows of a part. Rows that could not be measured get the reason.
func (t *Table) measure(ctx context.Context, p part) {
	err := p.measure(ctx, p.rows)
	if err == nil || ctx.Err() != nil {
		return
	}
	fmt.Fprintf(t.Progress, "  not measured: %v\n", err)
	for i := range p.rows {
		if row := &p.rows[i]; len(row.Ours.Values) == 0 || !t.oursOnly && !row.HasValues() {
			row.Missing = err.Error()
		}
	}
}

// takeTurns lets the other sides of a comparison catch up.
func (t *Table) takeTurns() {
	if t.turn != nil {
		t.turn()
	}
}

// A source has the indices of the probes that a row uses.
type source struct{ ours, against int }

// alone is the index for a row without a comparison.
const alone = -1

// fill runs the probes that the wanted rows need, in rounds, and fills row i from sources[i].
func (t *Table) fill(ctx context.Context, rounds int, probes []probe.Probe, rows []speedtable.Row, sources []source) error {
	needed := make([]bool, len(probes))
	for i, s := range sources {
		if !t.want(rows[i]) {
			continue
		}
		needed[s.ours] = true
		if s.against != alone && !t.oursOnly {
			needed[s.against] = true
		}
	}
	for i := range probes {
		probes[i].Skip = !needed[i]
		probes[i].Before = t.takeTurns
	}
	series, err := probe.Rounds(ctx, t.Progress, rounds, probes)
	for i, s := range sources {
		if s.against == alone {
			rows[i].Fill(series[s.ours])
		} else {
			rows[i].Fill(series[s.ours], series[s.against])
		}
	}
	return err
}

// here returns this host and its daemon, which most parts share. The daemon has no network: nothing leaves the machine, and another
// daemon may have RoCE's port.
func (t *Table) here(ctx context.Context) (*testbed.Host, *testbed.Daemon, error) {
	h := t.Lab.Here
	if t.daemon == nil {
		d, err := h.Start(ctx, "--network=false")
		if err != nil {
			return nil, nil, err
		}
		t.daemon = d
	}
	return h, t.daemon, nil
}

// stop ends this host's daemon.
func (t *Table) stop() {
	if t.daemon != nil {
		t.daemon.Stop()
		t.daemon = nil
	}
}
