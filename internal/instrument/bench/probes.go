package bench

import (
	"context"
	"fmt"
	"strings"
)

// latencyProbe probes a perftest latency tool over vrdma; the value is the median.
func latencyProbe(r Route, tool string, size, iterations int, options ...string) Probe {
	return Probe{
		Name: strings.Join(append([]string{tool, "-s", fmt.Sprint(size)}, options...), " "), Unit: "s",
		Measure: func(ctx context.Context) (Reading, error) {
			out, err := runPerftest(ctx, r, WithDevice, tool, append([]string{"-s", fmt.Sprint(size), "-n", fmt.Sprint(iterations)}, options...)...)
			if err != nil {
				return Reading{}, err
			}
			got, err := ParseLatency(out)
			return Reading{got.Typical * 1e-6, got.Average * 1e-6}, err
		},
	}
}

// What to take of a bandwidth tool's result.
var (
	averageRate = aspect{"B/s", func(b Bandwidth) float64 { return b.Average }}
	messageRate = aspect{"/s", func(b Bandwidth) float64 { return b.MessageRate }}
)

type aspect struct {
	unit string
	of   func(Bandwidth) float64
}

// bandwidthProbe probes a perftest bandwidth tool over vrdma.
func bandwidthProbe(r Route, tool string, size, iterations int) Probe {
	return throughputProbe(r, WithDevice, averageRate, tool, size, iterations)
}

// messageRateProbe probes the message rate of a perftest bandwidth tool over vrdma.
func messageRateProbe(r Route, tool string, size, iterations int) Probe {
	return throughputProbe(r, WithDevice, messageRate, tool, size, iterations)
}

// throughputProbe probes one aspect of a bandwidth tool.
func throughputProbe(r Route, w Launcher, a aspect, tool string, size, iterations int, args ...string) Probe {
	return Probe{
		Name: fmt.Sprintf("%s -s %d", tool, size), Unit: a.unit,
		Measure: func(ctx context.Context) (Reading, error) {
			got, err := runBandwidth(ctx, r, w, tool, size, iterations, args...)
			return Reading{Value: a.of(got)}, err
		},
	}
}

// qperfProbe probes TCP: value is latency, bw or msg_rate of a qperf test.
func qperfProbe(r Route, test, value, unit string, size int) Probe {
	return Probe{
		Name: fmt.Sprintf("qperf -m %d %s", size, test), Unit: unit,
		Measure: func(ctx context.Context) (Reading, error) {
			number, err := runQperf(ctx, r, Plain, test, value, size)
			return Reading{Value: number}, err
		},
	}
}

// iperf3Probe probes TCP's bandwidth.
func iperf3Probe(r Route) Probe {
	return Probe{Name: "iperf3", Unit: "B/s", Measure: func(ctx context.Context) (Reading, error) {
		rate, _, err := runIperf3(ctx, r, Plain)
		return Reading{Value: rate}, err
	}}
}

// pingpongProbe probes ibv_rc_pingpong; the value is an average.
func pingpongProbe(r Route, options ...string) Probe {
	return Probe{
		Name: strings.Join(append([]string{"ibv_rc_pingpong"}, options...), " "), Unit: "s",
		Measure: func(ctx context.Context) (Reading, error) {
			port, err := FreePort()
			if err != nil {
				return Reading{}, err
			}
			server := append([]string{"ibv_rc_pingpong", "-p", fmt.Sprint(port), "-g", "0", "-n", fmt.Sprint(sleepingMessages)}, options...)
			out, err := r.Pair(ctx, WithDevice, port, server, append(server[:len(server):len(server)], r.Server.IP))
			if err != nil {
				return Reading{}, err
			}
			seconds, err := ParsePingpong(out)
			return Reading{Value: seconds}, err
		},
	}
}

// cmtimeProbe probes how many connections a second are opened and closed again.
func cmtimeProbe(r Route, count int) Probe {
	return Probe{
		Name: fmt.Sprintf("cmtime -c %d", count), Unit: "/s",
		Measure: func(ctx context.Context) (Reading, error) {
			port, err := FreePort()
			if err != nil {
				return Reading{}, err
			}
			listen := fmt.Sprint(port)
			out, err := r.Pair(ctx, WithCM, port, []string{"cmtime", "-p", listen},
				[]string{"cmtime", "-s", r.Server.IP, "-p", listen, "-c", fmt.Sprint(count)})
			if err != nil {
				return Reading{}, err
			}
			seconds, err := ParseCmtime(out)
			if err != nil {
				return Reading{}, err
			}
			return Reading{Value: float64(count) / seconds}, nil
		},
	}
}
