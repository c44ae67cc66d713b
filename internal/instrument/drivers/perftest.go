package drivers

import (
	"cmp"
	"context"
	"fmt"
	"os/exec"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"vrdma.dev/vrdma/internal/instrument/experiment"
	"vrdma.dev/vrdma/internal/instrument/testbed"
)

// MiB is what perftest calls a megabyte.
const MiB = 1 << 20

// A Latency is one line of a perftest latency tool, in microseconds. The tools print half of a round trip, except for reads and
// atomics.
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

// ParseBandwidth reads the first result of ib_*_bw. Newer versions write MiB instead of MB for the same unit.
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
		Peak: fields[2] * MiB, Average: fields[3] * MiB, MessageRate: fields[4] * 1e6,
	}, nil
}

// perftestRow returns the first line of n numbers below the header with this column.
func perftestRow(output, column string, n int) ([]float64, error) {
	_, rest, found := strings.Cut(output, column)
	if !found {
		return nil, fmt.Errorf("perftest printed no column %q, but:\n%s", column, testbed.LastLines(output, 5))
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
			// perftest's standard deviation is -nan if one message took very long.
			numbers[i], err = strconv.ParseFloat(strings.Replace(word, "-nan", "nan", 1), 64)
			bad = bad || err != nil
		}
		if !bad {
			return numbers, nil
		}
	}
	return nil, fmt.Errorf("perftest printed no result below %q, but:\n%s", column, testbed.LastLines(output, 5))
}

// RunPerftest runs server and client of a perftest tool. args are for both.
func RunPerftest(ctx context.Context, r testbed.Route, w testbed.Launcher, tool string, args ...string) (string, error) {
	port, err := testbed.FreePort()
	if err != nil {
		return "", err
	}
	// -F: no warning about the processor's frequency, which means nothing in a virtual machine.
	server := append([]string{tool, "-F", "-p", fmt.Sprint(port)}, args...)
	return r.Pair(ctx, w, port, server, append(slices.Clone(server), r.Server.IP))
}

// RunBandwidth runs a bandwidth tool.
func RunBandwidth(ctx context.Context, r testbed.Route, w testbed.Launcher, tool string, size, iterations int, args ...string) (Bandwidth, error) {
	// -N: no peak. Finding it reads the clock for every message.
	args = append([]string{"-s", fmt.Sprint(size), "-n", fmt.Sprint(iterations), "-N"}, args...)
	out, err := RunPerftest(ctx, r, w, tool, args...)
	if err != nil {
		return Bandwidth{}, err
	}
	return ParseBandwidth(out)
}

// perftestDriver runs a perftest tool. Bandwidth tools run for a time: a thousand messages take only milliseconds. Latency tools send
// a number of messages, because perftest then prints a median.
func perftestDriver(tool string) Driver {
	latency, atomic := strings.HasSuffix(tool, "_lat"), strings.HasPrefix(tool, "ib_atomic")
	windowed := !latency && !atomic // the devices count the data of atomics, not their number
	return Driver{
		Commands: func(j *Job) (server, client []string) {
			args := []string{tool, "-F", "-p", j.portText()}
			if !atomic { // atomics have a fixed size
				args = append(args, "-s", j.sizeText())
			}
			if j.Cell.QPs != 0 {
				args = append(args, "-q", strconv.Itoa(j.Cell.QPs))
			}
			if j.Cell.PathMTU != 0 {
				args = append(args, "-m", strconv.Itoa(j.Cell.PathMTU))
			}
			if j.Kernel != nil { // so that no program measures another device
				args = append(args, "-d", j.Kernel.Name, "-x", strconv.Itoa(j.Kernel.GID))
			}
			switch {
			case latency:
				args = append(args, "-n", strconv.Itoa(cmp.Or(j.Messages, latencyCount(j.Cell))))
			case j.waitsForEvents():
				args = append(args, "-n", strconv.Itoa(eventMessages(j.Cell, j.Seconds)))
			case windowed && CommonWindow(j.Cell):
				args = append(args, "-D", "1", "--run_infinitely")
			default:
				args = append(args, "-D", j.secondsText())
			}
			if j.waitsForEvents() {
				args = append(args, "-e")
			}
			return args, append(slices.Clone(args), j.ServerIP())
		},
		Parse: func(_ *Job, output, _ string) (ToolResult, error) {
			if !latency {
				b, err := ParseBandwidth(output)
				return ToolResult{Values: map[string]float64{experiment.Bandwidth: b.Average, experiment.Rate: b.MessageRate}}, err
			}
			l, err := ParseLatency(output)
			return ToolResult{Values: map[string]float64{experiment.Latency: l.Typical * 1e-6, "p99": l.P99 * 1e-6, "p999": l.P999 * 1e-6}, Samples: l.Iterations}, err
		},
		Counted:  latency,
		Windowed: windowed,
	}
}

// eventMessages is how many messages a bandwidth tool sends that waits for events. perftest then cannot run for a time, so the number
// takes about as long.
func eventMessages(c experiment.Cell, seconds int) int {
	const most, bytes = 200_000, 4 << 30 // in a second
	return max(seconds, 1) * max(1000, min(most, int(bytes/int64(c.Size))))
}

// CommonWindow reports whether the pairs of a cell share a window. Clients then run until they are stopped.
func CommonWindow(c experiment.Cell) bool {
	if c.Pairs == 1 || c.Wait != experiment.Poll || experiment.Guests(c.Setting) {
		return false
	}
	_, err := exec.LookPath("stdbuf")
	return err == nil
}

// ReadParameters reads the parameters that perftest prints.
func ReadParameters(output string, m *experiment.Measurement) {
	for _, found := range parameter.FindAllStringSubmatch(output, -1) {
		n, _ := strconv.Atoi(found[2]) // digits only
		switch found[1] {
		case "Mtu":
			m.MTU = n
		case "TX depth":
			m.Depth = n
		default:
			m.Inline = &n
		}
	}
}

var parameter = regexp.MustCompile(`(Mtu|TX depth|Max inline data)\s*: (\d+)`)
