package bench

import (
	"bufio"
	"context"
	"fmt"
	"strconv"
	"strings"
	"time"

	"vrdma.dev/vrdma/internal/instrument/drivers"
	"vrdma.dev/vrdma/internal/instrument/probe"
	"vrdma.dev/vrdma/internal/instrument/speedtable"
	"vrdma.dev/vrdma/internal/instrument/testbed"
)

const (
	// upgradeRun is how long a ping-pong runs, with an upgrade in it or without.
	upgradeRun = 2 * time.Second
	// fewQPs and manyQPs are queue pairs of the rows. The many belong to manyPrograms programs, which have registered
	// manyBytes together.
	fewQPs       = 16
	manyQPs      = 1000
	manyPrograms = 100
	manyBytes    = 1 << 30
)

// upgrades measures how long an upgrade of the daemon stops a ping-pong, beyond the longest stop without an upgrade.
func (t *Table) upgrades() part {
	return part{
		name: "upgrade",
		rows: []speedtable.Row{
			{What: "longest gap of a 64 B ping-pong by an upgrade, 16 queue pairs", Ours: speedtable.Series{Unit: "s"}, Bound: 0.010, AtMost: true},
			{What: "longest gap of a 64 B ping-pong by an upgrade, 1000 queue pairs in 100 programs, 1 GiB registered", Ours: speedtable.Series{Unit: "s"}, Bound: 0.050, AtMost: true},
		},
		measure: func(ctx context.Context, rows []speedtable.Row) error {
			programs, err := t.Lab.Compile(ctx, "gap")
			if err != nil {
				return err
			}
			t.stop() // upgrades replace the process
			h, d, err := t.here(ctx)
			if err != nil {
				return err
			}
			t.daemon = nil
			defer func() {
				t.Lab.Command(context.Background(), t.Lab.Vrdma, "stop", "--socket", h.Socket).Run() // the process of the last upgrade
				d.Stop()
			}()
			if err := t.gaps(ctx, h, programs["gap"], rows[:1]); err != nil || !t.want(rows[1]) {
				return err
			}
			each := manyQPs / manyPrograms
			others := &testbed.IdlePrograms{}
			defer others.Stop()
			for range manyPrograms - fewQPs/each - 1 {
				if err := startGap(ctx, h, others, programs["gap"], each, "hold"); err != nil {
					return err
				}
			}
			return t.gaps(ctx, h, programs["gap"], rows[1:])
		},
		asked: true, single: true,
	}
}

// startGap starts a program that holds queue pairs and memory.
func startGap(ctx context.Context, h *testbed.Host, c *testbed.IdlePrograms, program string, qps int, flags ...string) error {
	argv := append([]string{program, strconv.Itoa(qps), strconv.Itoa(manyBytes / manyPrograms &^ 4095)}, flags...)
	_, out, err := c.Add(h.Lab.Command(ctx, h.Under(argv...)...))
	if err != nil {
		return err
	}
	if line, err := bufio.NewReader(out).ReadString('\n'); strings.TrimSpace(line) != "ready" {
		return fmt.Errorf("gap did not become ready: %q, %w", line, err)
	}
	return nil
}

// gaps fills a row with the difference that an upgrade makes.
func (t *Table) gaps(ctx context.Context, h *testbed.Host, program string, rows []speedtable.Row) error {
	err := t.fill(ctx, t.Rounds, []probe.Probe{t.gapProbe(h, program, true), t.gapProbe(h, program, false)}, rows, []source{{0, 1}})
	rows[0].Subtract()
	return err
}

// gapProbe measures the longest gap of a ping-pong, with an upgrade in it or without.
func (t *Table) gapProbe(h *testbed.Host, program string, upgrade bool) probe.Probe {
	name := "without an upgrade"
	if upgrade {
		name = "with an upgrade"
	}
	return probe.Probe{
		Name: name, Unit: "s",
		Measure: func(ctx context.Context) (r drivers.Reading, err error) {
			c := &testbed.IdlePrograms{}
			stopped := false
			defer func() {
				if !stopped {
					c.Stop()
				}
			}()
			_, out, err := c.Add(h.Lab.Command(ctx, h.Under(program, strconv.Itoa(fewQPs), strconv.Itoa(1<<20))...))
			if err != nil {
				return r, err
			}
			lines := bufio.NewReader(out)
			if line, err := lines.ReadString('\n'); strings.TrimSpace(line) != "ready" {
				return r, fmt.Errorf("gap did not become ready: %q, %w", line, err)
			}
			began := time.Now()
			if upgrade {
				if _, err := h.Lab.Run(ctx, h.Lab.Vrdma, "upgrade", "--socket", h.Socket); err != nil {
					return r, err
				}
			}
			if err := testbed.Sleep(ctx, time.Until(began.Add(upgradeRun))); err != nil {
				return r, err
			}
			c.End()
			line, err := lines.ReadString('\n')
			stopped = true
			c.Stop()
			if err != nil {
				return r, fmt.Errorf("gap printed %q: %w", line, err)
			}
			r.Value, err = strconv.ParseFloat(strings.TrimSpace(line), 64)
			return r, err
		},
	}
}
