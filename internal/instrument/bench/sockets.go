package bench

import (
	"context"
	"fmt"
	"strings"
	"time"

	"vrdma.dev/vrdma/internal/instrument/drivers"
	"vrdma.dev/vrdma/internal/instrument/testbed"
)

// carriedTimeout is the limit of a run over --sockets. A program whose connections are not carried may wait for ever.
const carriedTimeout = 20 * time.Second

// sockets compares TCP programs over --sockets with TCP.
func (t *Table) sockets() part {
	return t.together("sockets", t.nearSockets(), t.farSockets())
}

// nearSockets compares them on one host.
func (t *Table) nearSockets() part {
	return part{
		rows: []Row{
			ratioRow("TCP program over --sockets: bandwidth, one host, against TCP", 1.5),
			ratioAtMost("TCP program over --sockets: request and response, 64 B, one host, against TCP", 1),
		},
		measure: func(ctx context.Context, rows []Row) error {
			h, _, err := t.here(ctx)
			if err != nil {
				return err
			}
			r := h.Loopback()
			var tool pingPongTool
			var notes []string
			if t.want(rows[1]) {
				tool, notes = firstCarried(ctx, r)
			}
			if ctx.Err() != nil {
				return testbed.ErrInterrupted
			}
			probes := []Probe{iperf3CarriedProbe(r), iperf3Probe(r), carriedPingPongProbe(r, tool), plainPingPongProbe(r, tool)}
			rows[1].Note = strings.Join(notes, "; ")
			return t.fill(ctx, t.Rounds, probes, rows, []source{{0, 1}, {2, 3}})
		},
	}
}

// proveCarried runs f, which returns how many bytes it moved at least. It fails if the device sent fewer: then TCP carried them.
func proveCarried(ctx context.Context, r testbed.Route, f func(context.Context) (bytes uint64, err error)) error {
	ctx, cancel := context.WithTimeoutCause(ctx, carriedTimeout, testbed.Timeout(carriedTimeout))
	defer cancel()
	before, err := r.Client.SentBytes(ctx)
	if err != nil {
		return err
	}
	moved, err := f(ctx)
	if err != nil {
		return err
	}
	after, err := r.Client.SentBytes(ctx)
	if err != nil {
		return err
	}
	if after-before < moved {
		return fmt.Errorf("the device sent %d bytes, want at least %d: the connection went over TCP", after-before, moved)
	}
	return nil
}

// iperf3CarriedProbe measures a TCP program's bandwidth over RDMA.
func iperf3CarriedProbe(r testbed.Route) Probe {
	return Probe{Name: "iperf3 over --sockets", Unit: "B/s", Measure: func(ctx context.Context) (drivers.Reading, error) {
		var rate float64
		err := proveCarried(ctx, r, func(ctx context.Context) (bytes uint64, err error) {
			rate, bytes, err = drivers.RunIperf3(ctx, r, testbed.OverSockets)
			return bytes, err
		})
		return drivers.Reading{Value: rate}, err
	}}
}

// A pingPongTool sends messages of latencySize back and forth over TCP. It returns how many bytes it moved at least.
type pingPongTool struct {
	name string
	run  func(context.Context, testbed.Route, testbed.Launcher) (drivers.Reading, uint64, error)
}

// pingPongTools are the tools to try. The first one prints a median.
var pingPongTools = []pingPongTool{
	{"sockperf", func(ctx context.Context, r testbed.Route, w testbed.Launcher) (drivers.Reading, uint64, error) {
		return drivers.RunSockperf(ctx, r, w, latencySize)
	}},
	{"qperf tcp_lat", func(ctx context.Context, r testbed.Route, w testbed.Launcher) (drivers.Reading, uint64, error) {
		seconds, err := drivers.RunQperf(ctx, r, w, "tcp_lat", "latency", latencySize)
		if err != nil {
			return drivers.Reading{}, 0, err
		}
		return drivers.Reading{Value: seconds}, uint64(latencySize * 0.5 / seconds), nil // in a second, with a margin of one half
	}},
	{"NPtcp", func(ctx context.Context, r testbed.Route, w testbed.Launcher) (drivers.Reading, uint64, error) {
		return drivers.RunNetpipe(ctx, r, w, latencySize)
	}},
}

// trials is how often a tool may fail before the next is tried. On a busy machine any tool may fail once.
const trials = 2

// firstCarried returns the first tool that --sockets carries, and why it skipped others. If none works it returns the first, whose row
// then reports the failure.
func firstCarried(ctx context.Context, r testbed.Route) (tool pingPongTool, notes []string) {
	for _, p := range pingPongTools {
		trial := carriedPingPongProbe(r, p)
		var err error
		for range trials {
			if _, err = trial.measure(ctx); err == nil || ctx.Err() != nil {
				return p, notes
			}
		}
		notes = append(notes, fmt.Sprintf("%s is not carried: %v", p.name, err))
	}
	return pingPongTools[0], notes
}

// carriedPingPongProbe measures a TCP program's latency over RDMA.
func carriedPingPongProbe(r testbed.Route, p pingPongTool) Probe {
	return Probe{Name: p.name + " over --sockets", Unit: "s", Measure: func(ctx context.Context) (reading drivers.Reading, err error) {
		err = proveCarried(ctx, r, func(ctx context.Context) (moved uint64, err error) {
			reading, moved, err = p.run(ctx, r, testbed.OverSockets)
			return moved, err
		})
		return reading, err
	}}
}

// plainPingPongProbe measures TCP's latency.
func plainPingPongProbe(r testbed.Route, p pingPongTool) Probe {
	return Probe{Name: p.name, Unit: "s", Measure: func(ctx context.Context) (drivers.Reading, error) {
		reading, _, err := p.run(ctx, r, testbed.Plain)
		return reading, err
	}}
}
