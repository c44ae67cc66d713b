package bench

import (
	"context"
	"strings"

	"vrdma.dev/vrdma/internal/instrument/probe"
	"vrdma.dev/vrdma/internal/instrument/speedtable"
	"vrdma.dev/vrdma/internal/instrument/testbed"
)

// sockets compares TCP programs over --sockets with TCP.
func (t *Table) sockets() part {
	return t.together("sockets", t.nearSockets(), t.farSockets())
}

// nearSockets compares them on one host.
func (t *Table) nearSockets() part {
	return part{
		rows: []speedtable.Row{
			ratioRow("TCP program over --sockets: bandwidth, one host, against TCP", 1.5),
			ratioAtMost("TCP program over --sockets: request and response, 64 B, one host, against TCP", 1),
		},
		measure: func(ctx context.Context, rows []speedtable.Row) error {
			h, _, err := t.here(ctx)
			if err != nil {
				return err
			}
			r := h.Loopback()
			var tool probe.PingPongTool
			var notes []string
			if t.want(rows[1]) {
				tool, notes = probe.FirstCarried(ctx, r, probe.PingPongTools(latencySize))
			}
			if ctx.Err() != nil {
				return testbed.ErrInterrupted
			}
			probes := []probe.Probe{probe.CarriedIperf3(r), probe.Iperf3(r), probe.CarriedPingPong(r, tool), probe.PlainPingPong(r, tool)}
			rows[1].Note = strings.Join(notes, "; ")
			return t.fill(ctx, t.Rounds, probes, rows, []source{{0, 1}, {2, 3}})
		},
	}
}
