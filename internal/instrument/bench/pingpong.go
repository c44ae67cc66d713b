package bench

import (
	"context"
	"fmt"
	"strconv"
	"strings"
)

// ParsePingpong reads the seconds that a round of ibv_rc_pingpong took, there and back.
func ParsePingpong(output string) (float64, error) {
	for line := range strings.Lines(output) {
		_, rest, found := strings.Cut(line, " iters in ")
		_, rest, sums := strings.Cut(rest, " = ")
		words := strings.Fields(rest)
		if !found || !sums || len(words) != 2 || words[1] != "usec/iter" {
			continue
		}
		if us, err := strconv.ParseFloat(words[0], 64); err == nil {
			return us * 1e-6, nil
		}
	}
	return 0, fmt.Errorf("ibv_rc_pingpong printed no line with usec/iter, but:\n%s", lastLines(output, 5))
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
