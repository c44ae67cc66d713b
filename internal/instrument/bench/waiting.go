package bench

import (
	"context"

	"vrdma.dev/vrdma/internal/instrument/probe"
	"vrdma.dev/vrdma/internal/instrument/speedtable"
	"vrdma.dev/vrdma/internal/instrument/testbed"
)

// waiting measures programs without a processor of their own: they sleep on completion events, share processors, or are in another
// scheduler group than the daemon.
func (t *Table) waiting() part {
	return t.together("wait", t.sleepers(), t.besideSleepers(), t.calls(), t.armed(), t.apart(), t.costs(), t.farCosts())
}

// twice returns a latency row, and the same while a process of the lowest priority keeps the processors out of idle. The bound and the
// aim are for the first: on an idle machine a sleeping program mostly waits for a processor to wake up.
func twice(what, against string, bound, aim float64) []speedtable.Row {
	idle := ratioAtMost(what+", against "+against, bound)
	awake := speedtable.Row{What: what + ", processors kept awake, against " + against, Against: &speedtable.Series{}, AtMost: true, Unbounded: true}
	idle.Aim = aim
	return []speedtable.Row{idle, awake}
}

// reportedTwice returns such a pair without a comparison.
func reportedTwice(what string) []speedtable.Row {
	row := speedtable.Row{What: what, Ours: speedtable.Series{Unit: "s"}, AtMost: true, Unbounded: true}
	awake := row
	awake.What += ", processors kept awake"
	return []speedtable.Row{row, awake}
}

// fillTwice fills pairs of rows from twice: pair i uses sources[i].
func (t *Table) fillTwice(ctx context.Context, burner []string, probes []probe.Probe, rows []speedtable.Row, sources []source) error {
	all := probes[:len(probes):len(probes)]
	for _, p := range probes {
		all = append(all, probe.BesideBurner(t.Lab, p, burner))
	}
	var both []source
	for _, s := range sources {
		awake := source{s.ours + len(probes), s.against}
		if s.against != alone {
			awake.against += len(probes)
		}
		both = append(both, s, awake)
	}
	before, err := background(ctx)
	if err != nil {
		return err
	}
	if err := t.fill(ctx, t.Rounds, all, rows, both); err != nil {
		return err
	}
	after, err := background(ctx)
	for i := 0; i < len(rows); i += 2 {
		rows[i].Note = busyNote(max(before, after))
	}
	return err
}

// keptAwake fills pairs of rows with a KeepAwake of its own; burn is its program.
func (t *Table) keptAwake(ctx context.Context, burn string, probes []probe.Probe, rows []speedtable.Row, sources []source) (err error) {
	k := testbed.NewKeepAwake(burn)
	defer func() {
		if closeErr := k.Close(); err == nil {
			err = closeErr
		}
	}()
	return t.fillTwice(ctx, k.Command, probes, rows, sources)
}
