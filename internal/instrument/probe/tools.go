package probe

import (
	"context"
	"fmt"
	"strings"

	"vrdma.dev/vrdma/internal/instrument/drivers"
	"vrdma.dev/vrdma/internal/instrument/testbed"
)

// Latency runs a perftest latency tool over vrdma; the value is the median.
func Latency(r testbed.Route, tool string, size, iterations int, options ...string) Probe {
	return Probe{
		Name: strings.Join(append([]string{tool, "-s", fmt.Sprint(size)}, options...), " "), Unit: "s",
		Measure: func(ctx context.Context) (drivers.Reading, error) {
			out, err := drivers.RunPerftest(ctx, r, testbed.WithDevice, tool, append([]string{"-s", fmt.Sprint(size), "-n", fmt.Sprint(iterations)}, options...)...)
			if err != nil {
				return drivers.Reading{}, err
			}
			got, err := drivers.ParseLatency(out)
			return drivers.Reading{Value: got.Typical * 1e-6, Average: got.Average * 1e-6}, err
		},
	}
}

// The aspects of a bandwidth tool's output.
var (
	AverageRate       = Aspect{"B/s", func(b drivers.Bandwidth) float64 { return b.Average }}
	MessagesPerSecond = Aspect{"/s", func(b drivers.Bandwidth) float64 { return b.MessageRate }}
)

// An Aspect is the result of a bandwidth tool that Throughput returns.
type Aspect struct {
	unit string
	of   func(drivers.Bandwidth) float64
}

// Bandwidth runs a perftest bandwidth tool over vrdma.
func Bandwidth(r testbed.Route, tool string, size, iterations int) Probe {
	return Throughput(r, testbed.WithDevice, AverageRate, tool, size, iterations)
}

// MessageRate runs a perftest bandwidth tool over vrdma for its message rate.
func MessageRate(r testbed.Route, tool string, size, iterations int) Probe {
	return Throughput(r, testbed.WithDevice, MessagesPerSecond, tool, size, iterations)
}

// Throughput runs a bandwidth tool for one of its results.
func Throughput(r testbed.Route, w testbed.Launcher, a Aspect, tool string, size, iterations int, args ...string) Probe {
	return Probe{
		Name: fmt.Sprintf("%s -s %d", tool, size), Unit: a.unit,
		Measure: func(ctx context.Context) (drivers.Reading, error) {
			got, err := drivers.RunBandwidth(ctx, r, w, tool, size, iterations, args...)
			return drivers.Reading{Value: a.of(got)}, err
		},
	}
}

// Qperf runs a TCP test of qperf; value is latency, bw or msg_rate.
func Qperf(r testbed.Route, test, value, unit string, size int) Probe {
	return Probe{
		Name: fmt.Sprintf("qperf -m %d %s", size, test), Unit: unit,
		Measure: func(ctx context.Context) (drivers.Reading, error) {
			number, err := drivers.RunQperf(ctx, r, testbed.Plain, test, value, size)
			return drivers.Reading{Value: number}, err
		},
	}
}

// Iperf3 measures TCP's bandwidth.
func Iperf3(r testbed.Route) Probe {
	return Probe{Name: "iperf3", Unit: "B/s", Measure: func(ctx context.Context) (drivers.Reading, error) {
		rate, _, err := drivers.RunIperf3(ctx, r, testbed.Plain)
		return drivers.Reading{Value: rate}, err
	}}
}

// Pingpong runs ibv_rc_pingpong; the value is an average.
func Pingpong(r testbed.Route, iterations int, options ...string) Probe {
	return Probe{
		Name: strings.Join(append([]string{"ibv_rc_pingpong"}, options...), " "), Unit: "s",
		Measure: func(ctx context.Context) (drivers.Reading, error) {
			port, err := testbed.FreePort()
			if err != nil {
				return drivers.Reading{}, err
			}
			server := append([]string{"ibv_rc_pingpong", "-p", fmt.Sprint(port), "-g", "0", "-n", fmt.Sprint(iterations)}, options...)
			out, err := r.Pair(ctx, testbed.WithDevice, port, server, append(server[:len(server):len(server)], r.Server.IP))
			if err != nil {
				return drivers.Reading{}, err
			}
			seconds, err := drivers.ParsePingpong(out)
			return drivers.Reading{Value: seconds}, err
		},
	}
}

// Cmtime measures how many connections are opened and closed in a second.
func Cmtime(r testbed.Route, count int) Probe {
	return Probe{
		Name: fmt.Sprintf("cmtime -c %d", count), Unit: "/s",
		Measure: func(ctx context.Context) (drivers.Reading, error) {
			port, err := testbed.FreePort()
			if err != nil {
				return drivers.Reading{}, err
			}
			listen := fmt.Sprint(port)
			out, err := r.Pair(ctx, testbed.WithCM, port, []string{"cmtime", "-p", listen},
				[]string{"cmtime", "-s", r.Server.IP, "-p", listen, "-c", fmt.Sprint(count)})
			if err != nil {
				return drivers.Reading{}, err
			}
			seconds, err := drivers.ParseCmtime(out)
			if err != nil {
				return drivers.Reading{}, err
			}
			return drivers.Reading{Value: float64(count) / seconds}, nil
		},
	}
}
