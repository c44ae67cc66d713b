package drivers

import (
	"context"
	"fmt"
	"strconv"
	"strings"

	"vrdma.dev/vrdma/internal/instrument/experiment"
	"vrdma.dev/vrdma/internal/instrument/testbed"
)

// qperfUnits converts the units of qperf -uu to seconds, bytes/s and 1/s.
var qperfUnits = map[string]float64{"ns": 1e-9, "us": 1e-6, "ms": 1e-3, "sec": 1, "bytes/sec": 1, "/sec": 1}

// ParseQperf reads the values that one test of qperf -uu -vs printed.
func ParseQperf(output string) (map[string]float64, error) {
	values := make(map[string]float64)
	for line := range strings.Lines(output) {
		name, rest, found := strings.Cut(line, "=")
		words := strings.Fields(rest)
		if !found || len(words) != 2 {
			continue
		}
		unit, known := qperfUnits[words[1]]
		number, err := strconv.ParseFloat(strings.ReplaceAll(words[0], ",", ""), 64)
		if !known || err != nil {
			return nil, fmt.Errorf("qperf printed %q, which has no number or no known unit", strings.TrimSpace(line))
		}
		values[strings.TrimSpace(name)] = number * unit
	}
	if len(values) == 0 {
		return nil, fmt.Errorf("qperf printed no value, but:\n%s", testbed.LastLines(output, 5))
	}
	return values, nil
}

// RunQperf runs one test of qperf for a second and returns one of its values.
func RunQperf(ctx context.Context, r testbed.Route, w testbed.Launcher, test, value string, size int) (float64, error) {
	port, err := testbed.FreePort()
	if err != nil {
		return 0, err
	}
	listen := fmt.Sprint(port)
	out, err := r.Pair(ctx, w, port, []string{"qperf", "-lp", listen},
		[]string{"qperf", "-lp", listen, r.Server.IP, "-t", "1", "-uu", "-vs", "-m", fmt.Sprint(size), test})
	if err != nil {
		return 0, err
	}
	values, err := ParseQperf(out)
	if err != nil {
		return 0, err
	}
	number, found := values[value]
	if !found {
		return 0, fmt.Errorf("qperf %s gave no %s", test, value)
	}
	return number, nil
}

// qperfDriver runs a test of qperf. Its RDMA tests wait for events by default, and need rdma_cm because the port has no LID. They use
// the device that the address belongs to.
func qperfDriver(test, value, metric string) Driver {
	return Driver{
		Commands: func(j *Job) (server, client []string) {
			client = []string{"qperf", "-lp", j.portText(), j.ServerIP(), "-t", j.secondsText(), "-uu", "-vs", "-m", j.sizeText()}
			if strings.HasPrefix(test, "rc_") {
				client = append(client, "-cm1")
				if !j.waitsForEvents() {
					client = append(client, "--cq_poll", "1")
				}
			}
			return []string{"qperf", "-lp", j.portText()}, append(client, test)
		},
		Parse: func(j *Job, output, _ string) (ToolResult, error) {
			got, err := ParseQperf(output)
			if err != nil {
				return ToolResult{}, err
			}
			v, found := got[value]
			if !found {
				return ToolResult{}, fmt.Errorf("qperf %s gave no %s", test, value)
			}
			p := ToolResult{Values: map[string]float64{metric: v}}
			if rate, found := got["msg_rate"]; found {
				p.Values[experiment.Rate] = rate
				p.Samples = int64(rate * float64(max(j.Seconds, 1)))
			}
			return p, nil
		},
	}
}
