package bench

import (
	"context"
	"slices"
)

// farSockets is what a TCP program gains from --sockets between two hosts.
func (t *Table) farSockets() part {
	const what = "between two hosts: TCP program over --sockets: "
	latency := func(tool, size string) []Row {
		rows := twice(what+tool+", "+size, "TCP", 1, 1.5)
		rows[0].Aim = 0 // the bound is more
		return rows
	}
	netpipe := slices.Concat(latency("NetPIPE", "64 B"), latency("NetPIPE", "64 KiB"))
	for i := range netpipe {
		netpipe[i].Unbounded, netpipe[i].Aim = true, 0
	}
	return part{
		rows: slices.Concat(latency("sockperf", "64 B"), netpipe, []Row{
			ratioRow(what+"bandwidth, MTU 9000, against TCP", 1),
			ratioRow(what+"bandwidth, MTU 1500, against TCP", 1),
		}),
		measure: func(ctx context.Context, rows []Row) error {
			programs, err := t.Lab.Compile(ctx, "burn")
			if err != nil {
				return err
			}
			large, err := t.Lab.Wire(ctx, 9000)
			if err != nil {
				return err
			}
			defer large.Close()
			small, err := t.Lab.Wire(ctx, 1500)
			if err != nil {
				return err
			}
			defer small.Close()
			all := slices.Concat(large.daemons, small.daemons)
			r9, r1 := large.Route(), small.Route()

			var pings []Probe
			for _, p := range []pinger{pingers[0], netpipeOf(latencySize), netpipeOf(bulkSize)} {
				pings = append(pings, r9.carriedPingPong(p), r9.plainPingPong(p).without(all...))
			}
			const pairs = 3 // of rows
			if err := t.fillTwice(ctx, burner(programs), pings, rows[:2*pairs], []source{{0, 1}, {2, 3}, {4, 5}}); err != nil {
				return err
			}
			streams := []Probe{
				0: on(r9.iperf3Carried(), "MTU 9000"),
				1: on(r9.iperf3TCP(), "MTU 9000").without(all...),
				2: on(r1.iperf3Carried(), "MTU 1500"),
				3: on(r1.iperf3TCP(), "MTU 1500").without(all...),
			}
			return t.fill(ctx, t.Rounds, streams, rows[2*pairs:], []source{{0, 1}, {2, 3}})
		},
	}
}

// netpipeOf is NetPIPE with messages of this size.
func netpipeOf(size int) pinger {
	return pinger{"NPtcp, " + Quantity(float64(size), "B"), func(r Route, ctx context.Context, w way) (Reading, uint64, error) {
		return r.netpipe(ctx, w, size)
	}}
}
