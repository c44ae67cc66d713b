package bench

import (
	"context"
	"fmt"
	"os"

	"vrdma.dev/vrdma/internal/instrument/probe"
	"vrdma.dev/vrdma/internal/instrument/speedtable"
	"vrdma.dev/vrdma/internal/instrument/testbed"
)

// overlay compares NICs of a virtual network on two hosts with the hosts' own devices, through the same two daemons. Each daemon has
// its own store and recognizes the other as vrdma on both paths, so the only difference is VXLAN.
func (t *Table) overlay() part {
	row := func(what string, mtu int) string {
		return fmt.Sprintf("in a virtual network between two hosts: %s, MTU %d, against RoCEv2 without it", what, mtu)
	}
	// One microsecond of the 15 to 20 that a message takes there.
	latency := ratioAtMost(row("send latency, 64 B", 1500), 1.07)
	return part{
		name: "overlay",
		rows: []speedtable.Row{
			ratioRow(row("write bandwidth, 64 KiB", 1500), 0.9),
			ratioRow(row("read bandwidth, 64 KiB", 1500), 0.9),
			latency,
			ratioRow(row("write bandwidth, 64 KiB", 9000), 0.9),
			ratioRow(row("read bandwidth, 64 KiB", 9000), 0.9),
		},
		measure: func(ctx context.Context, rows []speedtable.Row) error {
			if err := t.overlayAt(ctx, 1500, rows[:3]); err != nil {
				return err
			}
			return t.overlayAt(ctx, 9000, rows[3:])
		},
	}
}

// overlayAt measures the rows of an MTU: write bandwidth, read bandwidth and, if there is a third row, latency.
func (t *Table) overlayAt(ctx context.Context, mtu int, rows []speedtable.Row) error {
	w, err := t.Lab.NewHostPair(ctx, mtu, func(h *testbed.Host) []string { return []string{"--store", h.Socket + ".db"} })
	if err != nil {
		return err
	}
	defer w.Close()
	inside := testbed.Route{Server: w.A.WithNIC("bench/a"), Client: w.B.WithNIC("bench/b")}
	for _, h := range []struct {
		host, other *testbed.Host
		elsewhere   string
	}{{w.A, w.B, "b"}, {w.B, w.A, "a"}} {
		file := h.host.Socket + ".yaml"
		if err := os.WriteFile(file, []byte(testbed.OverlayObjects(h.elsewhere, h.other.IP)), 0o644); err != nil {
			return err
		}
		if _, err := t.Lab.Run(ctx, h.host.At(t.Lab.Vrdma, "apply", "--socket", h.host.Socket, "-f", file)...); err != nil {
			return err
		}
	}
	plain := w.Route()
	const iterations = 10000
	probes := []probe.Probe{
		0: probe.On(probe.Bandwidth(inside, "ib_write_bw", bulkSize, iterations), "inside"),
		1: probe.Bandwidth(plain, "ib_write_bw", bulkSize, iterations),
		2: probe.On(probe.Bandwidth(inside, "ib_read_bw", bulkSize, iterations), "inside"),
		3: probe.Bandwidth(plain, "ib_read_bw", bulkSize, iterations),
		4: probe.On(probe.Latency(inside, "ib_send_lat", latencySize, 10000), "inside"),
		5: probe.Latency(plain, "ib_send_lat", latencySize, 10000),
	}
	sources := []source{{0, 1}, {2, 3}, {4, 5}}
	return t.fill(ctx, t.Rounds, probes[:2*len(rows)], rows, sources[:len(rows)])
}
