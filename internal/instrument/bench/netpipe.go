package bench

import (
	"context"
	"fmt"
	"strconv"
	"strings"

	"vrdma.dev/vrdma/internal/instrument/experiment"
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

// runNetpipe plays ping-pong with messages of this size.
func runNetpipe(ctx context.Context, r Route, w way, size int) (Reading, uint64, error) {
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

// netpipeRow reads size, bandwidth and half a round trip of a line of NetPIPE's file.
func netpipeRow(output string, size int) (printed, error) {
	seconds, err := ParseNetpipe(output, size)
	if err != nil {
		return printed{}, err
	}
	if seconds <= 0 {
		return printed{}, fmt.Errorf("NetPIPE measured %v seconds for %d bytes", seconds, size)
	}
	return printed{values: map[string]float64{experiment.Latency: seconds, experiment.Bandwidth: float64(size) / seconds}}, nil
}

// netpipeTimes is how often NetPIPE sends a message there and back: about a second's worth, and a
// hundred of the largest at least would take too long.
func netpipeTimes(j *job) int {
	most, least, bytes := 2000, 5, int64(256<<20)
	if experiment.Guests(j.cell.Setting) { // which are slow
		most, bytes = 500, 16<<20
	}
	return max(least, min(most, int(bytes*int64(max(j.seconds, 1))/int64(j.cell.Size))))
}

// netpipeArgs are what both sides are told. NetPIPE's own choice of sizes, each three bytes more and less,
// takes minutes.
func netpipeArgs(j *job) []string {
	return []string{"-l", j.size(), "-u", j.size(), "-p", "0", "-n", strconv.Itoa(netpipeTimes(j))}
}

// netpipeDriver is NetPIPE over sockets.
var netpipeDriver = driver{
	commands: func(j *job) (server, client []string) {
		server = append([]string{"NPtcp", "-P", j.listen()}, netpipeArgs(j)...)
		return server, append(server[:len(server):len(server)], "-h", j.ip(), "-o", "/dev/stdout")
	},
	parse: parseNetpipe,
}

func parseNetpipe(j *job, output, _ string) (printed, error) {
	p, err := netpipeRow(output, int(j.cell.Size))
	p.samples = int64(netpipeTimes(j))
	p.bytes = 2 * float64(p.samples) * float64(j.cell.Size)
	return p, err
}
