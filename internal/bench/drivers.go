package bench

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"vrdma/internal/experiment"
)

// A driver is how a tool is run for a cell, and what it prints.
type driver struct {
	commands func(c experiment.Cell, ip string, port, seconds int) (server, client []string)
	parse    func(output string) (printed, error)
}

// printed is what a tool measured, in seconds, bytes a second and a second.
type printed struct {
	values  map[string]float64
	samples int64
}

// drivers are of the tools that experiments name.
var drivers = map[string]driver{
	"ib_send_bw":   perftestDriver("ib_send_bw"),
	"ib_write_bw":  perftestDriver("ib_write_bw"),
	"ib_read_bw":   perftestDriver("ib_read_bw"),
	"ib_send_lat":  perftestDriver("ib_send_lat"),
	"ib_write_lat": perftestDriver("ib_write_lat"),
	"ib_read_lat":  perftestDriver("ib_read_lat"),
	"tcp_bw":       qperfDriver("tcp_bw", "bw", experiment.Bandwidth),
	"tcp_lat":      qperfDriver("tcp_lat", "latency", experiment.Latency),
	"iperf3": {
		commands: func(_ experiment.Cell, ip string, port, seconds int) (server, client []string) {
			p := strconv.Itoa(port)
			return []string{"iperf3", "-s", "-1", "-p", p}, []string{"iperf3", "-c", ip, "-p", p, "-t", strconv.Itoa(seconds), "-J"}
		},
		parse: func(output string) (printed, error) {
			rate, _, err := ParseIperf3(output)
			return printed{values: map[string]float64{experiment.Bandwidth: rate}}, err
		},
	},
	"sockperf": {
		commands: func(c experiment.Cell, ip string, port, seconds int) (server, client []string) {
			common := []string{"--tcp", "-i", ip, "-p", strconv.Itoa(port)}
			return append([]string{"sockperf", "server"}, common...),
				append([]string{"sockperf", "ping-pong", "-t", strconv.Itoa(seconds), "-m", size(c)}, common...)
		},
		parse: func(output string) (printed, error) {
			p, err := ParseSockperf(output)
			return printed{map[string]float64{experiment.Latency: p.Median}, int64(p.Messages)}, err
		},
	},
}

func size(c experiment.Cell) string { return strconv.FormatInt(int64(c.Size), 10) }

// latencyMessages is how many a latency tool sends: for a 99.9th percentile it takes ten thousand.
const latencyMessages = 10000

// eventMessages is how many messages a bandwidth tool sends that waits for events, since perftest
// then refuses to measure by time: what takes about as long.
func eventMessages(c experiment.Cell, seconds int) int {
	const most, bytes = 200_000, 4 << 30 // a second
	return max(seconds, 1) * max(1000, min(most, int(bytes/int64(c.Size))))
}

// perftestDriver runs one of perftest. Bandwidth is by time: a thousand messages last milliseconds.
// Latency is by number, because only then there is a median.
func perftestDriver(tool string) driver {
	latency := strings.HasSuffix(tool, "_lat")
	return driver{
		commands: func(c experiment.Cell, ip string, port, seconds int) (server, client []string) {
			args := []string{tool, "-F", "-p", strconv.Itoa(port), "-s", size(c)}
			if c.PathMTU != 0 {
				args = append(args, "-m", strconv.Itoa(c.PathMTU))
			}
			event := c.Wait == experiment.Event
			switch {
			case latency:
				args = append(args, "-n", strconv.Itoa(latencyMessages))
			case event:
				args = append(args, "-n", strconv.Itoa(eventMessages(c, seconds)))
			default:
				args = append(args, "-D", strconv.Itoa(max(seconds, 1)))
			}
			if event {
				args = append(args, "-e")
			}
			return args, append(slices.Clone(args), ip)
		},
		parse: func(output string) (printed, error) {
			if !latency {
				b, err := ParseBandwidth(output)
				return printed{values: map[string]float64{experiment.Bandwidth: b.Average, experiment.Rate: b.MessageRate}}, err
			}
			l, err := ParseLatency(output)
			return printed{map[string]float64{experiment.Latency: l.Typical * 1e-6, "p99": l.P99 * 1e-6, "p999": l.P999 * 1e-6}, l.Iterations}, err
		},
	}
}

// qperfDriver runs a test of qperf.
func qperfDriver(test, value, metric string) driver {
	return driver{
		commands: func(c experiment.Cell, ip string, port, seconds int) (server, client []string) {
			p := strconv.Itoa(port)
			return []string{"qperf", "-lp", p}, []string{"qperf", "-lp", p, ip, "-t", strconv.Itoa(seconds), "-uu", "-vs", "-m", size(c), test}
		},
		parse: func(output string) (printed, error) {
			got, err := ParseQperf(output)
			if err != nil {
				return printed{}, err
			}
			v, found := got[value]
			if !found {
				return printed{}, fmt.Errorf("qperf %s gave no %s", test, value)
			}
			return printed{values: map[string]float64{metric: v}}, nil
		},
	}
}
