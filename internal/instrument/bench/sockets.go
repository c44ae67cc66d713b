package bench

import (
	"context"
	"fmt"
	"strings"
	"time"

	"vrdma.dev/vrdma/internal/instrument/drivers"
	"vrdma.dev/vrdma/internal/instrument/testbed"
)

// carriedTimeout bounds a run over --sockets: programs that the preload library does
// not carry tend to wait for ever.
const carriedTimeout = 20 * time.Second

// sockets is what a TCP program gains from --sockets.
func (t *Table) sockets() part {
	return t.together("sockets", t.nearSockets(), t.farSockets())
}

// nearSockets is what it gains on one host.
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

// proveCarried runs f, which moves at least the bytes that it returns, and fails if the
// device did not: then they went over TCP.
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

// iperf3CarriedProbe probes a TCP program's bandwidth over RDMA.
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

// A pingPongTool is a tool that sends messages of latencySize to and fro over TCP. It
// returns how many bytes it moved, at least.
type pingPongTool struct {
	name string
	run  func(context.Context, testbed.Route, testbed.Launcher) (drivers.Reading, uint64, error)
}

// pingPongTools are the tools to try, the one with a median first.
var pingPongTools = []pingPongTool{
	{"sockperf", func(ctx context.Context, r testbed.Route, w testbed.Launcher) (drivers.Reading, uint64, error) {
		return drivers.RunSockperf(ctx, r, w, latencySize)
	}},
	{"qperf tcp_lat", func(ctx context.Context, r testbed.Route, w testbed.Launcher) (drivers.Reading, uint64, error) {
		seconds, err := drivers.RunQperf(ctx, r, w, "tcp_lat", "latency", latencySize)
		if err != nil {
			return drivers.Reading{}, 0, err
		}
		return drivers.Reading{Value: seconds}, uint64(latencySize * 0.5 / seconds), nil // of a second; half is certain
	}},
	{"NPtcp", func(ctx context.Context, r testbed.Route, w testbed.Launcher) (drivers.Reading, uint64, error) {
		return drivers.RunNetpipe(ctx, r, w, latencySize)
	}},
}

// trials is how often a tool may fail before another is taken: on a busy machine even
// one that is carried may.
const trials = 2

// firstCarried is the first tool that --sockets carries, and why those before it were not
// taken. If none is carried it is the first of all, and its row will say that it fails.
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

// carriedPingPongProbe probes a TCP program's latency over RDMA.
func carriedPingPongProbe(r testbed.Route, p pingPongTool) Probe {
	return Probe{Name: p.name + " over --sockets", Unit: "s", Measure: func(ctx context.Context) (reading drivers.Reading, err error) {
		err = proveCarried(ctx, r, func(ctx context.Context) (moved uint64, err error) {
			reading, moved, err = p.run(ctx, r, testbed.OverSockets)
			return moved, err
		})
		return reading, err
	}}
}

// plainPingPongProbe probes TCP's latency.
func plainPingPongProbe(r testbed.Route, p pingPongTool) Probe {
	return Probe{Name: p.name, Unit: "s", Measure: func(ctx context.Context) (drivers.Reading, error) {
		reading, _, err := p.run(ctx, r, testbed.Plain)
		return reading, err
	}}
}
