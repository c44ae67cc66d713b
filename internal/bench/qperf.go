package bench

import (
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
