package bench

import (
	"context"
	"fmt"
	"strconv"
	"strings"
)

// qperfUnits are the units that qperf -uu prints, in ours: seconds, bytes a
// second, messages a second.
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
		return nil, fmt.Errorf("qperf printed no value, but:\n%s", lastLines(output, 5))
	}
	return values, nil
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

// qperf runs one test of qperf for a second and returns one of its values.
func (r Route) qperf(ctx context.Context, w way, test, value string, size int) (float64, error) {
	port, err := freePort()
	if err != nil {
		return 0, err
	}
	listen := fmt.Sprint(port)
	out, err := r.pair(ctx, w, port, []string{"qperf", "-lp", listen},
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
