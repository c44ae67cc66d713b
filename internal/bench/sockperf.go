package bench

import (
	"context"
	"fmt"
	"strconv"
	"strings"
)

// ParseSockperf reads the median and the average latency, half of a round trip, in
// seconds, from sockperf ping-pong.
func ParseSockperf(output string) (median, average float64, err error) {
	number := func(after string) (float64, error) {
		_, rest, found := strings.Cut(output, after)
		words := strings.Fields(rest)
		if !found || len(words) == 0 {
			return 0, fmt.Errorf("sockperf printed no %q, but:\n%s", after, lastLines(output, 5))
		}
		us, err := strconv.ParseFloat(words[0], 64)
		if err != nil {
			return 0, fmt.Errorf("sockperf printed %q after %q: want microseconds", words[0], after)
		}
		return us * 1e-6, nil
	}
	if median, err = number("percentile 50.000 ="); err != nil {
		return 0, 0, err
	}
	average, err = number("Summary: Latency is")
	return median, average, err
}

// sockperf plays ping-pong with messages of this size for a second.
func (r Route) sockperf(ctx context.Context, w way, size int) (Reading, error) {
	port, err := freePort()
	if err != nil {
		return Reading{}, err
	}
	common := []string{"--tcp", "-i", r.Server.IP, "-p", fmt.Sprint(port), "-m", fmt.Sprint(size)}
	out, err := r.pair(ctx, w, port, append([]string{"sockperf", "server"}, common[:len(common)-2]...),
		append([]string{"sockperf", "ping-pong", "-t", "1"}, common...))
	if err != nil {
		return Reading{}, err
	}
	median, average, err := ParseSockperf(out)
	return Reading{Value: median, Average: average}, err
}
