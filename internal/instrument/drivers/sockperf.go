package drivers

import (
	"cmp"
	"context"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"vrdma.dev/vrdma/internal/instrument/experiment"
	"vrdma.dev/vrdma/internal/instrument/testbed"
)

// A PingPong is the result of sockperf ping-pong. Latencies are half of a round trip, in seconds.
type PingPong struct {
	Median, Average float64
	Messages        int // that were answered
}

// ParseSockperf reads the output of sockperf ping-pong.
func ParseSockperf(output string) (p PingPong, err error) {
	if strings.Contains(output, "No valid observations found") {
		return PingPong{}, fmt.Errorf("sockperf got no answer within its time: %w", experiment.ErrBusy)
	}
	number := func(after string) (float64, error) {
		_, rest, found := strings.Cut(output, after)
		words := strings.Fields(rest)
		if !found || len(words) == 0 {
			return 0, fmt.Errorf("sockperf printed no %q, but:\n%s", after, testbed.LastLines(output, 5))
		}
		v, err := strconv.ParseFloat(words[0], 64)
		if err != nil {
			return 0, fmt.Errorf("sockperf printed %q after %q: want a number", words[0], after)
		}
		return v, nil
	}
	median, err1 := number("percentile 50.000 =")
	average, err2 := number("Summary: Latency is")
	messages, err3 := number("; ReceivedMessages=")
	if err := cmp.Or(err1, err2, err3); err != nil {
		return PingPong{}, err
	}
	return PingPong{median * 1e-6, average * 1e-6, int(messages)}, nil
}

// RunSockperf sends messages of this size back and forth for two seconds.
func RunSockperf(ctx context.Context, r testbed.Route, w testbed.Launcher, size int) (Reading, uint64, error) {
	port, err := testbed.FreePort()
	if err != nil {
		return Reading{}, 0, err
	}
	common := []string{"--tcp", "-i", r.Server.IP, "-p", fmt.Sprint(port), "-m", fmt.Sprint(size)}
	out, err := r.Pair(ctx, w, port, append([]string{"sockperf", "server"}, common[:len(common)-2]...),
		append([]string{"sockperf", "ping-pong", "-t", "2"}, common...))
	if err != nil {
		return Reading{}, 0, err
	}
	p, err := ParseSockperf(out)
	return Reading{Value: p.Median, Average: p.Average}, uint64(p.Messages * size), err
}

// A Throughput is the result of sockperf throughput.
type Throughput struct {
	Sent     float64 // messages
	Received float64
	Seconds  float64
}

var (
	sockperfSent     = regexp.MustCompile(`Total of (\d+) messages sent in ([0-9.]+) sec`)
	sockperfReceived = regexp.MustCompile(`Total (\d+) messages received`)
)

// ParseSockperfThroughput reads the output of client and server of sockperf throughput. The client counts what it sent, much of which
// UDP may lose, so the value is what the server received.
func ParseSockperfThroughput(client, server string) (t Throughput, err error) {
	sent := sockperfSent.FindStringSubmatch(client)
	if sent == nil {
		return t, fmt.Errorf("sockperf printed no total, but:\n%s", testbed.LastLines(client, 5))
	}
	received := sockperfReceived.FindStringSubmatch(server)
	if received == nil {
		return t, fmt.Errorf("sockperf's server counted no messages, but said:\n%s", testbed.LastLines(server, 5))
	}
	for i, text := range []string{sent[1], sent[2], received[1]} {
		v, err := strconv.ParseFloat(text, 64)
		if err != nil {
			return t, fmt.Errorf("sockperf printed %q: want a number", text)
		}
		*[]*float64{&t.Sent, &t.Seconds, &t.Received}[i] = v
	}
	if t.Seconds <= 0 || t.Received <= 0 {
		return t, fmt.Errorf("sockperf moved %v messages in %v seconds", t.Received, t.Seconds)
	}
	// The server also counts messages of the warm-up.
	t.Received = min(t.Received, t.Sent)
	return t, nil
}

// sockperfDriver runs a test of sockperf, over TCP or UDP.
func sockperfDriver(test string, options ...string) Driver {
	d := Driver{
		Commands: func(j *Job) (server, client []string) {
			common := append(slices.Clone(options), "-i", j.ServerIP(), "-p", j.portText())
			return append([]string{"sockperf", "server"}, common...),
				append([]string{"sockperf", test, "-t", j.secondsText(), "-m", j.sizeText()}, common...)
		},
		Parse: func(_ *Job, output, _ string) (ToolResult, error) {
			p, err := ParseSockperf(output)
			return ToolResult{Values: map[string]float64{experiment.Latency: p.Median}, Samples: int64(p.Messages)}, err
		},
	}
	if len(options) == 0 {
		d.Launcher = func(experiment.Cell) testbed.Launcher { return testbed.PlainUDP }
	}
	if test == "throughput" {
		d.Interrupt = true
		d.Parse = func(j *Job, client, server string) (ToolResult, error) {
			t, err := ParseSockperfThroughput(client, server)
			if err != nil {
				return ToolResult{}, err
			}
			bytes := t.Received * float64(j.Cell.Size)
			return ToolResult{Bytes: bytes, Values: map[string]float64{
				experiment.Bandwidth: bytes / t.Seconds, experiment.Rate: t.Received / t.Seconds, "lost": 1 - t.Received/t.Sent,
			}}, nil
		}
	}
	return d
}
