package bench

import (
	"context"
	"fmt"

	"vrdma.dev/vrdma/internal/instrument/drivers"
	"vrdma.dev/vrdma/internal/instrument/probe"
	"vrdma.dev/vrdma/internal/instrument/speedtable"
	"vrdma.dev/vrdma/internal/instrument/testbed"
)

// idlePeers is how many queue pairs are idle while one is measured.
const idlePeers = 1000

// network measures two hosts: network namespaces with a veth pair.
func (t *Table) network() part {
	return t.together("veth", t.twoHosts(), t.reliability())
}

// twoHosts compares bandwidth and latency between two hosts with TCP.
func (t *Table) twoHosts() part {
	latency := ratioAtMost("between two hosts: send latency, 64 B, MTU 9000, against TCP", 2)
	latency.Aim = 1
	return part{
		rows: []speedtable.Row{
			ratioRow("between two hosts: write bandwidth, 64 KiB, MTU 9000, against TCP", 1.2),
			ratioRow("between two hosts: write bandwidth, 64 KiB, MTU 1500, against TCP", 1),
			latency,
			ratioRow("between two hosts: write bandwidth, 64 KiB, beside 1000 connected and idle QPs, against without", 0.95),
			ratioRow("between two hosts: 8 B writes, beside 1000 connected and idle QPs, against without", 0.95),
		},
		measure: func(ctx context.Context, rows []speedtable.Row) error {
			programs, err := t.Lab.Compile(ctx, "peers")
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
			r9, r1 := large.Route(), small.Route()
			probes := []probe.Probe{
				0: probe.On(probe.Bandwidth(r9, "ib_write_bw", bulkSize, 20000), "MTU 9000"),
				1: probe.On(probe.Iperf3(r9), "MTU 9000"),
				2: probe.On(probe.Bandwidth(r1, "ib_write_bw", bulkSize, 10000), "MTU 1500"),
				3: probe.On(probe.Iperf3(r1), "MTU 1500"),
				4: probe.On(probe.Latency(r9, "ib_send_lat", latencySize, 10000), "MTU 9000"),
				5: probe.On(probe.Qperf(r9, "tcp_lat", "latency", "s", latencySize), "MTU 9000"),
			}
			if err := t.fill(ctx, t.Rounds, probes, rows[:3], []source{{0, 1}, {2, 3}, {4, 5}}); err != nil {
				return err
			}
			return t.besideIdle(ctx, large, programs["peers"], rows[3:])
		},
	}
}

// besideIdle measures what idle queue pairs between the hosts cost an active one. The effect is a few percent, so it runs more rounds.
func (t *Table) besideIdle(ctx context.Context, w *testbed.HostPair, program string, rows []speedtable.Row) error {
	var probes []probe.Probe
	r := w.Route()
	for _, p := range []probe.Probe{probe.Bandwidth(r, "ib_write_bw", bulkSize, 20000), probe.MessageRate(r, "ib_write_bw", smallMessage, 200000)} {
		beside := probe.On(p, fmt.Sprintf("beside %d QPs", idlePeers))
		beside.Measure = func(ctx context.Context) (drivers.Reading, error) {
			idle, err := r.ConnectIdle(ctx, program, idlePeers)
			if err != nil {
				return drivers.Reading{}, err
			}
			defer func() {
				idle.Stop()
				testbed.Sleep(ctx, testbed.SettleTime) // if ctx ends, the next run reports it
			}()
			if err := testbed.Sleep(ctx, testbed.SettleTime); err != nil {
				return drivers.Reading{}, err
			}
			return p.Measure(ctx)
		}
		probes = append(probes, beside, p)
	}
	return t.fill(ctx, 2*t.Rounds, probes, rows, []source{{0, 1}, {2, 3}})
}
