package bench

import (
	"context"
	"fmt"
	"io"
	"strconv"
	"time"
)

// Sizes of the speed table.
const (
	smallMessage = 8
	latencySize  = 64
	bulkSize     = 64 << 10
	hugeSize     = 64 << 20
	regionSize   = 256 << 20
	crowdSize    = 100
	crowdQPs     = 10
	idleTime     = 10 * time.Second
)

// A Table measures the rows of the speed table.
type Table struct {
	Lab      *Lab
	Progress io.Writer
	Rounds   int
	Source   string // the repository, for the allocation tests; empty: leave them out

	programs map[string]string
}

// Run measures everything. What fails ends the run with an error; what is slow is
// only marked.
func (t *Table) Run(ctx context.Context, version string) (*Report, error) {
	report := &Report{Time: time.Now(), Version: version, Machine: ThisMachine()}
	var err error
	if t.programs, err = t.Lab.Compile(ctx, "ring", "copy", "register", "idle"); err != nil {
		return nil, err
	}
	d, err := t.Lab.startDaemon(ctx)
	if err != nil {
		return nil, err
	}
	defer d.stop()

	for _, part := range []func(context.Context, *daemon) ([]Row, error){t.footprint, t.speed, t.registration, t.idleness, t.aftermath, t.allocations} {
		rows, err := part(ctx, d)
		if err != nil {
			return nil, err
		}
		report.Rows = append(report.Rows, rows...)
	}
	for i := range report.Rows {
		report.Rows[i].Judge()
	}
	return report, nil
}

// speed is everything that moves data, all probes in turn.
func (t *Table) speed(ctx context.Context, _ *daemon) ([]Row, error) {
	l := t.Lab
	probes := []Probe{
		0:  l.bandwidth("ib_write_bw", bulkSize, 20000),
		1:  l.tcp("tcp_bw", "bw", "B/s", bulkSize),
		2:  l.latency("ib_send_lat", latencySize, 10000),
		3:  l.tcp("tcp_lat", "latency", "s", latencySize),
		4:  l.latency("ib_write_lat", latencySize, 10000),
		5:  l.messages("ib_write_bw", smallMessage, 500000),
		6:  l.baseline("ring of 1 slot", "/s", t.programs["ring"], "20", "1"),
		7:  l.messages("ib_send_bw", smallMessage, 500000),
		8:  l.bandwidth("ib_write_bw", hugeSize, 50),
		9:  l.baseline("memcpy of 64 MiB", "B/s", t.programs["copy"], strconv.Itoa(hugeSize), "11"),
		10: l.baseline("ring of 128 slots", "/s", t.programs["ring"], "50", "128"),
	}
	s, err := Rounds(ctx, t.Progress, t.Rounds, probes)
	if err != nil {
		return nil, err
	}
	return []Row{
		{What: "write bandwidth, 64 KiB, against TCP", Ours: s[0], Against: &s[1], Bound: 4},
		{What: "write bandwidth, 64 MiB, against a cold memcpy", Ours: s[8], Against: &s[9], Bound: 0.6},
		{What: "send latency, 64 B, against TCP", Ours: s[2], Against: &s[3], Bound: 0.5, AtMost: true},
		{What: "write latency, 64 B, against TCP", Ours: s[4], Against: &s[3], Bound: 0.5, AtMost: true},
		{What: "8 B writes, one QP, against a bare ring", Ours: s[5], Against: &s[10], Bound: 0.2},
		{What: "8 B sends, one QP, against a bare ring", Ours: s[7], Against: &s[10], Bound: 0.2},
		{What: "8 B writes, one QP, against a ring of one slot", Ours: s[5], Against: &s[6], Unbounded: true},
		{What: "8 B sends, one QP, against a ring of one slot", Ours: s[7], Against: &s[6], Unbounded: true},
		{What: "8 B writes, one QP", Ours: s[5], Bound: 1.5e6},
		{What: "8 B sends, one QP", Ours: s[7], Bound: 1.5e6},
	}, nil
}

// registration times ibv_reg_mr.
func (t *Table) registration(ctx context.Context, _ *daemon) ([]Row, error) {
	first := Series{Name: "ibv_reg_mr", Unit: "s"}
	again := Series{Name: "ibv_reg_mr", Unit: "s"}
	for range t.Rounds {
		seconds, err := t.Lab.numbers(ctx, 2, t.Lab.Under(t.programs["register"], strconv.Itoa(regionSize))...)
		if err != nil {
			return nil, err
		}
		first.add(Reading{Value: seconds[0]})
		again.add(Reading{Value: seconds[1]})
		fmt.Fprintf(t.Progress, "  registering 256 MiB: %s, again %s\n", Quantity(seconds[0], "s"), Quantity(seconds[1], "s"))
	}
	return []Row{
		{What: "registering 256 MiB", Ours: first, Bound: 0.5, AtMost: true},
		{What: "registering it again", Ours: again, Bound: 0.005, AtMost: true},
	}, nil
}

// footprint is the memory of a daemon that has not worked yet, and what a queue
// pair adds to it.
func (t *Table) footprint(ctx context.Context, d *daemon) ([]Row, error) {
	idle, err := d.anonymous()
	if err != nil {
		return nil, err
	}
	rss := func(qps int) (float64, error) {
		crowd, err := t.Lab.gather(ctx, t.programs["idle"], 1, qps)
		if err != nil {
			return 0, err
		}
		defer crowd.dismiss()
		return d.anonymous()
	}
	const few, many = 10, 1000
	before, err := rss(few)
	if err != nil {
		return nil, err
	}
	after, err := rss(many)
	if err != nil {
		return nil, err
	}
	each := (after - before) / (many - few)
	fmt.Fprintf(t.Progress, "  daemon's memory: %s, %s for each QP\n", Quantity(idle, "B"), Quantity(each, "B"))
	return []Row{
		{What: "daemon memory, idle", Ours: Series{Name: "RssAnon", Unit: "B", Values: []float64{idle}}, Bound: 40 << 20, AtMost: true},
		{What: "daemon memory for each further QP", Ours: Series{Name: "RssAnon", Unit: "B", Values: []float64{each}}, Bound: 64 << 10, AtMost: true},
	}, nil
}

// aftermath is the memory of a daemon that has worked and has nothing to do now.
func (t *Table) aftermath(_ context.Context, d *daemon) ([]Row, error) {
	idle, err := d.anonymous()
	if err != nil {
		return nil, err
	}
	return []Row{
		{What: "daemon memory, idle again after all this", Ours: Series{Name: "RssAnon", Unit: "B", Values: []float64{idle}}, Bound: 40 << 20, AtMost: true},
	}, nil
}

// idleness is what a thousand queue pairs cost that do nothing.
func (t *Table) idleness(ctx context.Context, d *daemon) ([]Row, error) {
	fmt.Fprintf(t.Progress, "  starting %d programs with %d idle QPs each\n", crowdSize, crowdQPs)
	crowd, err := t.Lab.gather(ctx, t.programs["idle"], crowdSize, crowdQPs)
	if err != nil {
		return nil, err
	}
	defer crowd.dismiss()
	if err := wait(ctx, time.Second); err != nil { // what starting them left to do
		return nil, err
	}
	used := Series{Name: "daemon's CPU", Unit: "%"}
	for range 2 {
		before, err := d.cpu()
		if err != nil {
			return nil, err
		}
		begin := time.Now()
		if err := wait(ctx, idleTime); err != nil {
			return nil, err
		}
		after, err := d.cpu()
		if err != nil {
			return nil, err
		}
		used.add(Reading{Value: 100 * float64(after-before) / float64(time.Since(begin))})
	}
	fmt.Fprintf(t.Progress, "  daemon's CPU: %s of a core\n", Quantity(used.Median(), "%"))
	return []Row{{What: "daemon's CPU with 1000 idle QPs in 100 programs", Ours: used, Bound: 1, AtMost: true}}, nil
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
