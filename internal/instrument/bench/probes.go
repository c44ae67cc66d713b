package bench

import (
	"context"
	"fmt"
	"strings"

	"vrdma.dev/vrdma/internal/instrument/drivers"
	"vrdma.dev/vrdma/internal/instrument/testbed"
)

// latencyProbe runs a perftest latency tool over vrdma; the value is the median.
func latencyProbe(r testbed.Route, tool string, size, iterations int, options ...string) Probe {
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

// Which result of a bandwidth tool is the value.
var (
	averageRate = aspect{"B/s", func(b drivers.Bandwidth) float64 { return b.Average }}
	messageRate = aspect{"/s", func(b drivers.Bandwidth) float64 { return b.MessageRate }}
)

type aspect struct {
	unit string
	of   func(drivers.Bandwidth) float64
}

// bandwidthProbe runs a perftest bandwidth tool over vrdma.
func bandwidthProbe(r testbed.Route, tool string, size, iterations int) Probe {
	return throughputProbe(r, testbed.WithDevice, averageRate, tool, size, iterations)
}

// messageRateProbe runs a perftest bandwidth tool over vrdma for its message rate.
func messageRateProbe(r testbed.Route, tool string, size, iterations int) Probe {
	return throughputProbe(r, testbed.WithDevice, messageRate, tool, size, iterations)
}

// throughputProbe runs a bandwidth tool for one of its results.
func throughputProbe(r testbed.Route, w testbed.Launcher, a aspect, tool string, size, iterations int, args ...string) Probe {
	return Probe{
		Name: fmt.Sprintf("%s -s %d", tool, size), Unit: a.unit,
		Measure: func(ctx context.Context) (drivers.Reading, error) {
			got, err := drivers.RunBandwidth(ctx, r, w, tool, size, iterations, args...)
			return drivers.Reading{Value: a.of(got)}, err
		},
	}
}

// qperfProbe runs a TCP test of qperf; value is latency, bw or msg_rate.
func qperfProbe(r testbed.Route, test, value, unit string, size int) Probe {
	return Probe{
		Name: fmt.Sprintf("qperf -m %d %s", size, test), Unit: unit,
		Measure: func(ctx context.Context) (drivers.Reading, error) {
			number, err := drivers.RunQperf(ctx, r, testbed.Plain, test, value, size)
			return drivers.Reading{Value: number}, err
		},
	}
}

// iperf3Probe measures TCP's bandwidth.
func iperf3Probe(r testbed.Route) Probe {
	return Probe{Name: "iperf3", Unit: "B/s", Measure: func(ctx context.Context) (drivers.Reading, error) {
		rate, _, err := drivers.RunIperf3(ctx, r, testbed.Plain)
		return drivers.Reading{Value: rate}, err
	}}
}

// pingpongProbe runs ibv_rc_pingpong; the value is an average.
func pingpongProbe(r testbed.Route, options ...string) Probe {
	return Probe{
		Name: strings.Join(append([]string{"ibv_rc_pingpong"}, options...), " "), Unit: "s",
		Measure: func(ctx context.Context) (drivers.Reading, error) {
			port, err := testbed.FreePort()
			if err != nil {
				return drivers.Reading{}, err
			}
			server := append([]string{"ibv_rc_pingpong", "-p", fmt.Sprint(port), "-g", "0", "-n", fmt.Sprint(sleepingMessages)}, options...)
			out, err := r.Pair(ctx, testbed.WithDevice, port, server, append(server[:len(server):len(server)], r.Server.IP))
			if err != nil {
				return drivers.Reading{}, err
			}
			seconds, err := drivers.ParsePingpong(out)
			return drivers.Reading{Value: seconds}, err
		},
	}
}

// cmtimeProbe measures how many connections are opened and closed in a second.
func cmtimeProbe(r testbed.Route, count int) Probe {
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
