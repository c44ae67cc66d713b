package bench

import (
	"context"
	"fmt"
	"io"
	"slices"
	"time"
)

// Sizes of the speed table.
const (
	smallMessage = 8
	latencySize  = 64
	bulkSize     = 64 << 10
)

// A Table measures the rows of the speed table.
type Table struct {
	Lab      *Lab
	Progress io.Writer
	Rounds   int
	Source   string   // the repository, for the guest and the allocation tests; empty: leave them out
	Only     []string // names of parts; empty: all that need no naming
	Kernel   string   // a device of the kernel's rxe, for the part rxe

	daemon *daemon // of this host
}

// A part is rows that are measured together. They are listed before anything is
// measured, so that each can say why it was not.
type part struct {
	name    string
	rows    []Row
	measure func(context.Context, []Row) error
	asked   bool // only when named
}

// parts are the whole table, in order.
func (t *Table) parts() []part {
	return []part{t.local(), t.connections(), t.sockets(), t.network(), t.guest(), t.rxe(), t.allocations()}
}

// Parts are the names that Only may have.
func Parts() []string {
	var names []string
	for _, p := range new(Table).parts() {
		names = append(names, p.name)
	}
	return names
}

// ratioRow is a row whose bound is a ratio.
func ratioRow(what string, bound float64) Row {
	return Row{What: what, Bound: bound, Against: &Series{}}
}

// ratioAtMost is a row whose bound is a ratio, from above.
func ratioAtMost(what string, bound float64) Row {
	return Row{What: what, Bound: bound, Against: &Series{}, AtMost: true}
}

// Run measures the parts. A part that cannot be measured says so in its rows and a
// tool that fails in the row it was for; what is slow is only marked. The run ends
// early only when ctx does.
func (t *Table) Run(ctx context.Context, version string) (*Report, error) {
	report := &Report{Time: time.Now(), Version: version, Machine: ThisMachine()}
	defer t.stop()
	for _, p := range t.parts() {
		if len(t.Only) > 0 && !slices.Contains(t.Only, p.name) || len(t.Only) == 0 && p.asked {
			continue
		}
		fmt.Fprintf(t.Progress, "%s:\n", p.name)
		err := p.measure(ctx, p.rows)
		if ctx.Err() != nil {
			return nil, errInterrupted
		}
		if err != nil {
			fmt.Fprintf(t.Progress, "  not measured: %v\n", err)
		}
		for i := range p.rows {
			row := &p.rows[i]
			if err != nil && !row.measured() {
				row.Missing = err.Error()
			}
			row.Judge()
		}
		report.Rows = append(report.Rows, p.rows...)
	}
	return report, nil
}

// here is this host with its daemon, which serves every part that needs no other. It
// has no network: nothing leaves the machine, and RoCE's port may belong to others.
func (t *Table) here(ctx context.Context) (*Host, *daemon, error) {
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
		t.daemon.stop()
		t.daemon = nil
	}
}

// wait sleeps unless ctx ends.
func wait(ctx context.Context, d time.Duration) error {
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(d):
		return nil
	}
}
