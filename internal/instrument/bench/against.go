package bench

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"iter"
	"math/rand/v2"
	"slices"
	"strings"
	"time"

	"vrdma.dev/vrdma/internal/instrument/speedtable"
	"vrdma.dev/vrdma/internal/instrument/testbed"
)

// A Comparison measures this build, this build again as the control, and another build, in one run. Each side has a lab with
// a daemon of its own.
//
// Each side is a Table with the same code. One side runs at a time: it stops before every measurement until the other two have
// reached the same one. Then all three measure, in random order.
//
//	this build     set-up │ ib_write_bw │             │             │ ib_send_lat │ …
//	the control           │             │             │ ib_write_bw │             │
//	the other             │             │ ib_write_bw │             │             │
//	                      └──────────── one step, in any order ─────┘
type Comparison struct {
	Ours, Control, Theirs *testbed.Lab
	Table                 Table // what to measure; Lab and Progress are not used
	Progress              io.Writer
}

// sides is the number of tables. Labs and tables are in the order of speedtable.Sides.
const sides = len(speedtable.Sides)

// Comparable returns the names of the parts that can be compared.
func Comparable() []string {
	var names []string
	for _, p := range new(Table).parts() {
		if !p.single {
			names = append(names, p.name)
		}
	}
	return names
}

// Run measures all sides and compares their rows. After an interruption the report has the parts that were measured before.
func (c *Comparison) Run(ctx context.Context, version string) (*speedtable.Compared, error) {
	report := &speedtable.Compared{Time: time.Now(), Version: version, Machine: speedtable.ThisMachine()}
	other, err := c.Theirs.Run(ctx, c.Theirs.Vrdma, "version")
	if err != nil {
		return nil, fmt.Errorf("the other build does not run: %w", err)
	}
	report.Other = strings.TrimSpace(strings.TrimPrefix(other, "vrdma "))
	var tables [sides]*Table
	for i, lab := range []*testbed.Lab{c.Ours, c.Control, c.Theirs} {
		t := c.Table
		t.Lab, t.Progress, t.oursOnly = lab, &prefixed{to: c.Progress, prefix: fmt.Sprintf("%-12s", speedtable.Sides[i])}, true
		tables[i] = &t
		defer t.stop()
	}
	var chosen [sides][]part
	for i, t := range tables {
		chosen[i] = slices.DeleteFunc(t.chosen(), func(p part) bool { return p.single })
	}
	for i, p := range chosen[0] {
		fmt.Fprintf(c.Progress, "%s:\n", p.name)
		parts := [sides]part{p, chosen[1][i], chosen[2][i]}
		var runs [sides]iter.Seq[struct{}]
		for side, t := range tables {
			runs[side] = t.steps(ctx, parts[side])
		}
		interleave(runs[:])
		if ctx.Err() != nil {
			return report, testbed.ErrInterrupted
		}
		for j, row := range p.rows {
			if c.Table.want(row) {
				report.Add(speedtable.Compare(&parts[0].rows[j], &parts[1].rows[j], &parts[2].rows[j]))
			}
		}
	}
	return report, nil
}

// steps measures a part and yields before every measurement.
func (t *Table) steps(ctx context.Context, p part) iter.Seq[struct{}] {
	return func(yield func(struct{}) bool) {
		t.turn = func() { yield(struct{}{}) } // interleave runs every sequence to its end
		t.measure(ctx, p)
		t.turn = nil
	}
}

// interleave advances the runs one step at a time, in random order, until all have ended. A fixed order would favour one of them:
// processors are warmer after another measurement.
func interleave(runs []iter.Seq[struct{}]) {
	next := make([]func() (struct{}, bool), len(runs))
	for i, run := range runs {
		step, stop := iter.Pull(run)
		defer stop()
		next[i] = step
	}
	for left := len(runs); left > 0; {
		for _, i := range rand.Perm(len(runs)) {
			if next[i] == nil {
				continue
			}
			if _, more := next[i](); !more {
				next[i] = nil
				left--
			}
		}
	}
}

// prefixed writes a prefix before every line.
type prefixed struct {
	to     io.Writer
	prefix string
	inLine bool
}

func (p *prefixed) Write(b []byte) (int, error) {
	var out bytes.Buffer
	for line := range bytes.Lines(b) {
		if !p.inLine {
			out.WriteString(p.prefix)
		}
		out.Write(line)
		p.inLine = !bytes.HasSuffix(line, []byte("\n"))
	}
	if _, err := p.to.Write(out.Bytes()); err != nil {
		return 0, err
	}
	return len(b), nil
}
