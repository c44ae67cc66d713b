package drivers

import (
	"fmt"
	"strconv"
	"strings"

	"vrdma.dev/vrdma/internal/instrument/testbed"
)

// ParsePingpong reads the duration of a round trip of ibv_rc_pingpong, in seconds.
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
	return 0, fmt.Errorf("ibv_rc_pingpong printed no line with usec/iter, but:\n%s", testbed.LastLines(output, 5))
}
