package bench

import (
	"context"
	"slices"

	"vrdma.dev/vrdma/internal/instrument/probe"
	"vrdma.dev/vrdma/internal/instrument/speedtable"
)

// farSockets measures a TCP program with --sockets between two hosts.
func (t *Table) farSockets() part {
	const what = "between two hosts: TCP program over --sockets: "
	latency := twice(what+"sockperf, 64 B", "TCP", 1, 0)
	latency[1].Aim = 1.5
	reported := func(what string) speedtable.Row {
		return speedtable.Row{What: what, Against: &speedtable.Series{}, AtMost: true, Unbounded: true}
	}
	return part{
		rows: append(latency,
			reported(what+"NetPIPE, 64 B, against TCP"),
			reported(what+"NetPIPE, 64 KiB, against TCP"),
			ratioRow(what+"bandwidth, MTU 9000, against TCP", 1),
			ratioRow(what+"bandwidth, MTU 1500, against TCP", 1),
		),
		measure: func(ctx context.Context, rows []speedtable.Row) error {
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

			sockperf := probe.PingPongTools(latencySize)[0]
			pings := []probe.Probe{
				0: probe.CarriedPingPong(r9, sockperf),
				1: probe.PlainPingPong(r9, sockperf).Without(all...),
			}
			if err := t.keptAwake(ctx, programs["burn"], pings, rows[:2], []source{{0, 1}}); err != nil {
				return err
			}
			small64, bulk64 := probe.Netpipe(latencySize), probe.Netpipe(bulkSize)
			others := []probe.Probe{
				0: probe.CarriedPingPong(r9, small64),
				1: probe.PlainPingPong(r9, small64).Without(all...),
				2: probe.CarriedPingPong(r9, bulk64),
				3: probe.PlainPingPong(r9, bulk64).Without(all...),
				4: probe.On(probe.CarriedIperf3(r9), "MTU 9000"),
				5: probe.On(probe.Iperf3(r9), "MTU 9000").Without(all...),
				6: probe.On(probe.CarriedIperf3(r1), "MTU 1500"),
				7: probe.On(probe.Iperf3(r1), "MTU 1500").Without(all...),
			}
			return t.fill(ctx, t.Rounds, others, rows[2:], []source{{0, 1}, {2, 3}, {4, 5}, {6, 7}})
		},
	}
}
