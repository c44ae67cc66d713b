package bench

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// mebibyte is what perftest calls a megabyte.
const mebibyte = 1 << 20

// A Latency is one line of a perftest latency tool, in microseconds. The tools
// give half of a round trip, except for reads and atomics.
type Latency struct {
	Bytes, Iterations                                int64
	Min, Max, Typical, Average, Deviation, P99, P999 float64
}

// A Bandwidth is one line of a perftest bandwidth tool.
type Bandwidth struct {
	Bytes, Iterations int64
	Peak, Average     float64 // bytes a second
	MessageRate       float64 // messages a second
}

// ParseLatency reads the first result of ib_*_lat without -D.
func ParseLatency(output string) (Latency, error) {
	fields, err := perftestRow(output, "t_typical[usec]", 9)
	if err != nil {
		return Latency{}, err
	}
	return Latency{
		Bytes: int64(fields[0]), Iterations: int64(fields[1]),
		Min: fields[2], Max: fields[3], Typical: fields[4], Average: fields[5], Deviation: fields[6],
		P99: fields[7], P999: fields[8],
	}, nil
}

// ParseBandwidth reads the first result of ib_*_bw. Newer ones call a mebibyte by its name, MiB; a gigabit has other columns.
func ParseBandwidth(output string) (Bandwidth, error) {
	column := "BW average[MB/sec]"
	if newer := "BW average[MiB/sec]"; strings.Contains(output, newer) {
		column = newer
	}
	fields, err := perftestRow(output, column, 5)
	if err != nil {
		return Bandwidth{}, err
	}
	return Bandwidth{
		Bytes: int64(fields[0]), Iterations: int64(fields[1]),
		Peak: fields[2] * mebibyte, Average: fields[3] * mebibyte, MessageRate: fields[4] * 1e6,
	}, nil
}

// perftestRow is the first line of n numbers after the header with this column.
func perftestRow(output, column string, n int) ([]float64, error) {
	_, rest, found := strings.Cut(output, column)
	if !found {
		return nil, fmt.Errorf("perftest printed no column %q, but:\n%s", column, lastLines(output, 5))
	}
	for line := range strings.Lines(rest) {
		words := strings.Fields(line)
		if len(words) != n {
			continue
		}
		numbers := make([]float64, n)
		bad := false
		for i, word := range words {
			var err error
			// The C library prints the sign of what is not a number; perftest's
			// deviation is none when a single message took very long.
			numbers[i], err = strconv.ParseFloat(strings.Replace(word, "-nan", "nan", 1), 64)
			bad = bad || err != nil
		}
		if !bad {
			return numbers, nil
		}
	}
	return nil, fmt.Errorf("perftest printed no result below %q, but:\n%s", column, lastLines(output, 5))
}

// lastLines is the end of a tool's output, for messages.
func lastLines(text string, n int) string {
	lines := strings.Split(strings.TrimSpace(text), "\n")
	return strings.Join(lines[max(0, len(lines)-n):], "\n")
}

// perftest runs a pair of a perftest tool. The arguments are for both sides.
func (r Route) perftest(ctx context.Context, w way, tool string, args ...string) (string, error) {
	port, err := freePort()
	if err != nil {
		return "", err
	}
	// -F: the clock's frequency is nobody's business in a virtual machine.
	server := append([]string{tool, "-F", "-p", fmt.Sprint(port)}, args...)
	return r.pair(ctx, w, port, server, append(slices.Clone(server), r.Server.IP))
}

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

// stream runs a bandwidth tool.
func (r Route) stream(ctx context.Context, w way, tool string, size, iterations int, args ...string) (Bandwidth, error) {
	// -N: finding the peak reads the clock for every message.
	args = append([]string{"-s", fmt.Sprint(size), "-n", fmt.Sprint(iterations), "-N"}, args...)
	out, err := r.perftest(ctx, w, tool, args...)
	if err != nil {
		return Bandwidth{}, err
	}
	return ParseBandwidth(out)
}
