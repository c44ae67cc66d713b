package bench

import (
	"context"
	"slices"

	"vrdma.dev/vrdma/internal/instrument/drivers"
	"vrdma.dev/vrdma/internal/instrument/experiment"
	"vrdma.dev/vrdma/internal/instrument/testbed"
)

// farSockets measures a TCP program with --sockets between two hosts.
func (t *Table) farSockets() part {
	const what = "between two hosts: TCP program over --sockets: "
	latency := twice(what+"sockperf, 64 B", "TCP", 1, 0)
	latency[1].Aim = 1.5
	reported := func(what string) Row {
		return Row{What: what, Against: &Series{}, AtMost: true, Unbounded: true}
	}
	return part{
		rows: append(latency,
			reported(what+"NetPIPE, 64 B, against TCP"),
			reported(what+"NetPIPE, 64 KiB, against TCP"),
			ratioRow(what+"bandwidth, MTU 9000, against TCP", 1),
			ratioRow(what+"bandwidth, MTU 1500, against TCP", 1),
		),
		measure: func(ctx context.Context, rows []Row) error {
			programs, err := t.Lab.Compile(ctx, "burn")
			if err != nil {
				return err
			}
			large, err := t.Lab.NewHostPair(ctx, 9000)
			if err != nil {
				return err
			}
			defer large.Close()
			small, err := t.Lab.NewHostPair(ctx, 1500)
			if err != nil {
				return err
			}
			defer small.Close()
			all := slices.Concat(large.Daemons, small.Daemons)
			r9, r1 := large.Route(), small.Route()

			pings := []Probe{
				0: carriedPingPongProbe(r9, pingPongTools[0]),
				1: plainPingPongProbe(r9, pingPongTools[0]).without(all...),
			}
			if err := t.keptAwake(ctx, programs["burn"], pings, rows[:2], []source{{0, 1}}); err != nil {
				return err
			}
			small64, bulk64 := netpipeOf(latencySize), netpipeOf(bulkSize)
			others := []Probe{
				0: carriedPingPongProbe(r9, small64),
				1: plainPingPongProbe(r9, small64).without(all...),
				2: carriedPingPongProbe(r9, bulk64),
				3: plainPingPongProbe(r9, bulk64).without(all...),
				4: on(iperf3CarriedProbe(r9), "MTU 9000"),
				5: on(iperf3Probe(r9), "MTU 9000").without(all...),
				6: on(iperf3CarriedProbe(r1), "MTU 1500"),
				7: on(iperf3Probe(r1), "MTU 1500").without(all...),
			}
			return t.fill(ctx, t.Rounds, others, rows[2:], []source{{0, 1}, {2, 3}, {4, 5}, {6, 7}})
		},
	}
}

// netpipeOf is NetPIPE with messages of this size.
func netpipeOf(size int) pingPongTool {
	return pingPongTool{"NPtcp, " + experiment.Amount(float64(size), "B"), func(ctx context.Context, r testbed.Route, w testbed.Launcher) (drivers.Reading, uint64, error) {
		return drivers.RunNetpipe(ctx, r, w, size)
	}}
}
