package bench

import (
	"context"
	"fmt"
	"strings"
)

// latency probes a perftest latency tool over vrdma; the value is the median.
func (r Route) latency(tool string, size, iterations int, options ...string) Probe {
	return Probe{
		Name: strings.Join(append([]string{tool, "-s", fmt.Sprint(size)}, options...), " "), Unit: "s",
		Measure: func(ctx context.Context) (Reading, error) {
			out, err := r.perftest(ctx, device, tool, append([]string{"-s", fmt.Sprint(size), "-n", fmt.Sprint(iterations)}, options...)...)
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

// bandwidth probes a perftest bandwidth tool over vrdma.
func (r Route) bandwidth(tool string, size, iterations int) Probe {
	return r.throughput(device, averageRate, tool, size, iterations)
}

// messages probes the message rate of a perftest bandwidth tool over vrdma.
func (r Route) messages(tool string, size, iterations int) Probe {
	return r.throughput(device, messageRate, tool, size, iterations)
}

// throughput probes one aspect of a bandwidth tool.
func (r Route) throughput(w way, a aspect, tool string, size, iterations int, args ...string) Probe {
	return Probe{
		Name: fmt.Sprintf("%s -s %d", tool, size), Unit: a.unit,
		Measure: func(ctx context.Context) (Reading, error) {
			got, err := r.stream(ctx, w, tool, size, iterations, args...)
			return Reading{Value: a.of(got)}, err
		},
	}
}

// tcp probes TCP: value is latency, bw or msg_rate of a qperf test.
func (r Route) tcp(test, value, unit string, size int) Probe {
	return Probe{
		Name: fmt.Sprintf("qperf -m %d %s", size, test), Unit: unit,
		Measure: func(ctx context.Context) (Reading, error) {
			number, err := r.qperf(ctx, plain, test, value, size)
			return Reading{Value: number}, err
		},
	}
}

// iperf3TCP probes TCP's bandwidth.
func (r Route) iperf3TCP() Probe {
	return Probe{Name: "iperf3", Unit: "B/s", Measure: func(ctx context.Context) (Reading, error) {
		rate, _, err := r.iperf3(ctx, plain)
		return Reading{Value: rate}, err
	}}
}

// pingpong probes ibv_rc_pingpong; the value is an average.
func (r Route) pingpong(options ...string) Probe {
	return Probe{
		Name: strings.Join(append([]string{"ibv_rc_pingpong"}, options...), " "), Unit: "s",
		Measure: func(ctx context.Context) (Reading, error) {
			port, err := freePort()
			if err != nil {
				return Reading{}, err
			}
			server := append([]string{"ibv_rc_pingpong", "-p", fmt.Sprint(port), "-g", "0", "-n", fmt.Sprint(sleeperMessages)}, options...)
			out, err := r.pair(ctx, device, port, server, append(server[:len(server):len(server)], r.Server.IP))
			if err != nil {
				return Reading{}, err
			}
			seconds, err := ParsePingpong(out)
			return Reading{Value: seconds}, err
		},
	}
}

// connections probes how many connections a second are opened and closed again.
func (r Route) connections(count int) Probe {
	return Probe{
		Name: fmt.Sprintf("cmtime -c %d", count), Unit: "/s",
		Measure: func(ctx context.Context) (Reading, error) {
			port, err := freePort()
			if err != nil {
				return Reading{}, err
			}
			listen := fmt.Sprint(port)
			out, err := r.pair(ctx, managed, port, []string{"cmtime", "-p", listen},
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
