package bench

import (
	"context"
	"fmt"
	"strconv"
	"strings"
)

// ParseNetpipe reads the latency, half of a round trip, in seconds, from the file that
// NPtcp writes: size, Mbit/s and seconds in each line.
func ParseNetpipe(output string, size int) (float64, error) {
	for line := range strings.Lines(output) {
		words := strings.Fields(line)
		if len(words) != 3 || words[0] != fmt.Sprint(size) {
			continue
		}
		if seconds, err := strconv.ParseFloat(words[2], 64); err == nil {
			return seconds, nil
		}
	}
	return 0, fmt.Errorf("NPtcp wrote no line for %d bytes, but:\n%s", size, lastLines(output, 5))
}

// netpipe plays ping-pong with messages of this size.
func (r Route) netpipe(ctx context.Context, w way, size int) (Reading, uint64, error) {
	const messages = 10000
	port, err := freePort()
	if err != nil {
		return Reading{}, 0, err
	}
	bytes := fmt.Sprint(size)
	server := []string{"NPtcp", "-P", fmt.Sprint(port), "-l", bytes, "-u", bytes, "-p", "0", "-n", fmt.Sprint(messages)}
	client := append(server[:len(server):len(server)], "-h", r.Server.IP, "-o", "/dev/stdout")
	out, err := r.pair(ctx, w, port, server, client)
	if err != nil {
		return Reading{}, 0, err
	}
	seconds, err := ParseNetpipe(out, size)
	return Reading{Value: seconds}, uint64(messages * size), err
}
