package bench

import (
	"context"
	"errors"
	"fmt"

	"vrdma.dev/vrdma/internal/instrument/drivers"
	"vrdma.dev/vrdma/internal/instrument/experiment"
	"vrdma.dev/vrdma/internal/instrument/probe"
	"vrdma.dev/vrdma/internal/instrument/speedtable"
	"vrdma.dev/vrdma/internal/instrument/testbed"
)

// vms measures two guests and a program on their host: through vrdma, and through tap and bridge. All guests are emulated, so only
// ratios are meaningful.
func (t *Table) vms() part {
	return part{
		name: "vms", single: true,
		rows: []speedtable.Row{
			ratioRow("between guests: write bandwidth, 64 KiB, against TCP over tap and bridge", 5),
			ratioRow("between guests: write bandwidth, 64 KiB, against the kernel's rxe in the guests", 10),
			ratioRow("between guests: TCP over vhost-user, against tap with the same interrupts", 1),
			ratioAtMost("between guests: send latency, 64 B, against TCP over tap and bridge", 0.5),
			ratioAtMost("guest and host: send latency, 64 B, against TCP over tap", 0.5),
			ratioRow("between guests: write bandwidth, 64 KiB, on one host against across two", 1),
			{What: "two idle guests with their agents: the daemon's CPU", Ours: speedtable.Series{Unit: "%"}, Bound: 1, AtMost: true, Step: 0.1},
		},
		measure: func(ctx context.Context, rows []speedtable.Row) error {
			err := t.guestsTogether(ctx, rows[:5], &rows[6])
			if ctx.Err() != nil || !t.want(rows[5]) {
				return err
			}
			return errors.Join(err, t.guestsApart(ctx, rows[0].Ours, &rows[5]))
		},
	}
}

// guestRounds is how often guests are measured. They are slow, and the differences are large.
const guestRounds = 3

// guestEnvironments makes guests with a third card.
func guestEnvironments(t *Table) *testbed.Environments {
	return &testbed.Environments{Lab: t.Lab, Source: t.Source, ThirdCard: true}
}

// guestsTogether measures guests on one host, and the idle daemon.
func (t *Table) guestsTogether(ctx context.Context, rows []speedtable.Row, idle *speedtable.Row) error {
	fmt.Fprintln(t.Progress, "  booting two guests")
	p, err := testbed.NewVMs(ctx, guestEnvironments(t), experiment.Cell{})
	if err != nil {
		return err
	}
	defer p.Close()
	if t.want(*idle) {
		used, err := idleShare(ctx, p.Daemons[0])
		if err != nil {
			return err
		}
		fmt.Fprintf(t.Progress, "  daemon's CPU: %s of a core\n", experiment.Amount(used.Median(), "%"))
		idle.Fill(used)
	}
	host, err := t.Lab.GuestsHost(ctx, p)
	if err != nil {
		return err
	}
	twin := testbed.Route{}
	for i, side := range []**testbed.Host{&twin.Client, &twin.Server} {
		m := p.VMs[i]
		h := *m.TapSide
		h.IP, h.Interface = fmt.Sprintf("10.97.0.%d", i+1), "eth2"
		*side = &h
		if err := m.Run(ctx, "ip link set eth2 up && ip address add "+h.IP+"/24 dev eth2 && rdma link add rxe_tap type rxe netdev eth1"); err != nil {
			return err
		}
	}
	ours, tap := p.Route, *p.TapRoute
	up := testbed.Route{Server: host, Client: p.VMs[0].TapSide}
	// With more messages in flight rxe overruns the card of the other guest and waits for timeouts.
	const few = "2"
	probes := []probe.Probe{
		0: probe.On(probe.Throughput(ours, testbed.WithDevice, probe.AverageRate, "ib_write_bw", bulkSize, 2000), "verbs"),
		1: probe.On(probe.Iperf3(tap), "tap"),
		2: probe.On(probe.Throughput(tap, testbed.Plain, probe.AverageRate, "ib_write_bw", bulkSize, 50, "-d", "rxe_tap", "-x", "1", "-t", few), "rxe"),
		3: probe.On(probe.Iperf3(ours), "vhost-user"),
		4: probe.On(probe.Iperf3(twin), "tap, no MSI-X"),
		5: probe.On(better(probe.Latency(ours, "ib_send_lat", latencySize, 500), probe.Latency(ours, "ib_send_lat", latencySize, 500, "-e")), "verbs"),
		6: probe.On(probe.Qperf(tap, "tcp_lat", "latency", "s", latencySize), "tap"),
		7: probe.On(better(probe.Latency(up, "ib_send_lat", latencySize, 500), probe.Latency(up, "ib_send_lat", latencySize, 500, "-e")), "verbs, host"),
		8: probe.On(probe.Qperf(up, "tcp_lat", "latency", "s", latencySize), "tap, host"),
	}
	return t.fill(ctx, min(t.Rounds, guestRounds), probes, rows, []source{{0, 1}, {0, 2}, {3, 4}, {5, 6}, {7, 8}})
}

// better returns a probe of the lower of two values.
func better(a, b probe.Probe) probe.Probe {
	return probe.Probe{Name: a.Name + " or -e", Unit: a.Unit, Measure: func(ctx context.Context) (drivers.Reading, error) {
		one, err1 := a.Measure(ctx)
		two, err2 := b.Measure(ctx)
		if err1 != nil || err2 == nil && two.Value < one.Value {
			return two, err2
		}
		return one, nil
	}}
}

// guestsApart measures guests on two hosts. together is the series of guests on one host.
func (t *Table) guestsApart(ctx context.Context, together speedtable.Series, row *speedtable.Row) error {
	fmt.Fprintln(t.Progress, "  booting two guests on two hosts")
	p, err := testbed.NewVMsApart(ctx, guestEnvironments(t), experiment.Cell{})
	if err != nil {
		return err
	}
	defer p.Close()
	series, err := probe.Rounds(ctx, t.Progress, min(t.Rounds, guestRounds), []probe.Probe{probe.On(probe.Throughput(p.Route, testbed.WithDevice, probe.AverageRate, "ib_write_bw", bulkSize, 500), "two hosts")})
	row.Fill(together, series[0])
	return err
}
