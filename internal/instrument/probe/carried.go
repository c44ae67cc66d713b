package probe

import (
	"context"
	"fmt"
	"time"

	"vrdma.dev/vrdma/internal/instrument/drivers"
	"vrdma.dev/vrdma/internal/instrument/experiment"
	"vrdma.dev/vrdma/internal/instrument/testbed"
)

// carriedTimeout is the limit of a run over --sockets. A program whose connections are not carried may wait for ever.
const carriedTimeout = 20 * time.Second

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

// CarriedIperf3 measures a TCP program's bandwidth over RDMA.
func CarriedIperf3(r testbed.Route) Probe {
	return Probe{Name: "iperf3 over --sockets", Unit: "B/s", Measure: func(ctx context.Context) (drivers.Reading, error) {
		var rate float64
		err := proveCarried(ctx, r, func(ctx context.Context) (bytes uint64, err error) {
			rate, bytes, err = drivers.RunIperf3(ctx, r, testbed.OverSockets)
			return bytes, err
		})
		return drivers.Reading{Value: rate}, err
	}}
}

// A PingPongTool sends messages back and forth over TCP. It returns how many bytes it moved at least.
type PingPongTool struct {
	name string
	run  func(context.Context, testbed.Route, testbed.Launcher) (drivers.Reading, uint64, error)
}

// PingPongTools returns the tools to try with messages of this size. The first one prints a median.
func PingPongTools(size int) []PingPongTool {
	return []PingPongTool{
		{"sockperf", func(ctx context.Context, r testbed.Route, w testbed.Launcher) (drivers.Reading, uint64, error) {
			return drivers.RunSockperf(ctx, r, w, size)
		}},
		{"qperf tcp_lat", func(ctx context.Context, r testbed.Route, w testbed.Launcher) (drivers.Reading, uint64, error) {
			seconds, err := drivers.RunQperf(ctx, r, w, "tcp_lat", "latency", size)
			if err != nil {
				return drivers.Reading{}, 0, err
			}
			return drivers.Reading{Value: seconds}, uint64(float64(size) * 0.5 / seconds), nil // in a second, with a margin of one half
		}},
		{"NPtcp", func(ctx context.Context, r testbed.Route, w testbed.Launcher) (drivers.Reading, uint64, error) {
			return drivers.RunNetpipe(ctx, r, w, size)
		}},
	}
}

// trials is how often a tool may fail before the next is tried. On a busy machine any tool may fail once.
const trials = 2

// FirstCarried returns the first tool that --sockets carries, and why it skipped others. If none works it returns the first, whose row
// then reports the failure.
func FirstCarried(ctx context.Context, r testbed.Route, tools []PingPongTool) (tool PingPongTool, notes []string) {
	for _, p := range tools {
		trial := CarriedPingPong(r, p)
		var err error
		for range trials {
			if _, err = trial.measure(ctx); err == nil || ctx.Err() != nil {
				return p, notes
			}
		}
		notes = append(notes, fmt.Sprintf("%s is not carried: %v", p.name, err))
	}
	return tools[0], notes
}

// CarriedPingPong measures a TCP program's latency over RDMA.
func CarriedPingPong(r testbed.Route, p PingPongTool) Probe {
	return Probe{Name: p.name + " over --sockets", Unit: "s", Measure: func(ctx context.Context) (reading drivers.Reading, err error) {
		err = proveCarried(ctx, r, func(ctx context.Context) (moved uint64, err error) {
			reading, moved, err = p.run(ctx, r, testbed.OverSockets)
			return moved, err
		})
		return reading, err
	}}
}

// PlainPingPong measures TCP's latency.
func PlainPingPong(r testbed.Route, p PingPongTool) Probe {
	return Probe{Name: p.name, Unit: "s", Measure: func(ctx context.Context) (drivers.Reading, error) {
		reading, _, err := p.run(ctx, r, testbed.Plain)
		return reading, err
	}}
}

// Netpipe is NetPIPE with messages of this size.
func Netpipe(size int) PingPongTool {
	return PingPongTool{"NPtcp, " + experiment.Amount(float64(size), "B"), func(ctx context.Context, r testbed.Route, w testbed.Launcher) (drivers.Reading, uint64, error) {
		return drivers.RunNetpipe(ctx, r, w, size)
	}}
}
