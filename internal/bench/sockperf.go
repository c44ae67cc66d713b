package bench

import (
	"cmp"
	"context"
	"fmt"
	"strconv"
	"strings"
)

// A PingPong is what sockperf ping-pong measured: latencies are half of a round trip,
// in seconds.
type PingPong struct {
	Median, Average float64
	Messages        int // that came back
}

// ParseSockperf reads the output of sockperf ping-pong.
func ParseSockperf(output string) (p PingPong, err error) {
	number := func(after string) (float64, error) {
		_, rest, found := strings.Cut(output, after)
		words := strings.Fields(rest)
		if !found || len(words) == 0 {
			return 0, fmt.Errorf("sockperf printed no %q, but:\n%s", after, lastLines(output, 5))
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

// sockperf plays ping-pong with messages of this size for two seconds.
func (r Route) sockperf(ctx context.Context, w way, size int) (Reading, uint64, error) {
	port, err := freePort()
	if err != nil {
		return Reading{}, 0, err
	}
	common := []string{"--tcp", "-i", r.Server.IP, "-p", fmt.Sprint(port), "-m", fmt.Sprint(size)}
	out, err := r.pair(ctx, w, port, append([]string{"sockperf", "server"}, common[:len(common)-2]...),
		append([]string{"sockperf", "ping-pong", "-t", "2"}, common...))
	if err != nil {
		return Reading{}, 0, err
	}
	p, err := ParseSockperf(out)
	return Reading{Value: p.Median, Average: p.Average}, uint64(p.Messages * size), err
}
