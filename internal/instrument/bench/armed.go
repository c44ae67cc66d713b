package bench

import (
	"context"
	"fmt"
	"time"

	"vrdma.dev/vrdma/internal/instrument/experiment"
	"vrdma.dev/vrdma/internal/instrument/speedtable"
	"vrdma.dev/vrdma/internal/instrument/testbed"
)

// armedChannels is how many armed completion channels each sleeping program has.
const armedChannels = 10

// armed measures the daemon's processor time while many programs sleep on completion events.
func (t *Table) armed() part {
	return part{
		rows: []speedtable.Row{{What: "daemon's CPU with 1000 armed completion channels in 100 sleeping programs", Ours: speedtable.Series{Unit: "%"}, Bound: 1, AtMost: true, Step: 0.1}},
		measure: func(ctx context.Context, rows []speedtable.Row) error {
			programs, err := t.Lab.Compile(ctx, "armed")
			if err != nil {
				return err
			}
			h, d, err := t.here(ctx)
			if err != nil {
				return err
			}
			t.takeTurns()
			fmt.Fprintf(t.Progress, "  starting %d programs with %d armed channels each\n", idleProgramCount, armedChannels)
			sleeping, err := h.StartIdle(ctx, programs["armed"], idleProgramCount, armedChannels)
			if err != nil {
				return err
			}
			defer sleeping.Stop()
			used, err := idleShare(ctx, d)
			if err != nil {
				return err
			}
			fmt.Fprintf(t.Progress, "  daemon's CPU: %s of a core\n", experiment.Amount(used.Median(), "%"))
			rows[0].Fill(used)
			return nil
		},
	}
}

// idleShare measures the processor time of an idle daemon, in percent.
func idleShare(ctx context.Context, d *testbed.Daemon) (speedtable.Series, error) {
	used := speedtable.Series{Name: "daemon's CPU", Unit: "%"}
	if err := testbed.Sleep(ctx, time.Second); err != nil { // for the work that is left from starting the programs
		return used, err
	}
	for range 2 {
		before, err := d.CPUTime()
		if err != nil {
			return used, err
		}
		begin := time.Now()
		if err := testbed.Sleep(ctx, idleTime); err != nil {
			return used, err
		}
		after, err := d.CPUTime()
		if err != nil {
			return used, err
		}
		used.Add(100 * float64(after-before) / float64(time.Since(begin)))
	}
	return used, nil
}
