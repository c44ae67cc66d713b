package drivers

import (
	"context"
	"fmt"
	"regexp"
	"strconv"
	"strings"
	"syscall"

	"vrdma.dev/vrdma/internal/instrument/experiment"
	"vrdma.dev/vrdma/internal/instrument/testbed"
)

// ParseNetpipe reads the latency, half of a round trip, in seconds. Each line of NetPIPE's file has size, Mbit/s and seconds.
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
	return 0, fmt.Errorf("NPtcp wrote no line for %d bytes, but:\n%s", size, testbed.LastLines(output, 5))
}

// RunNetpipe sends messages of this size back and forth.
func RunNetpipe(ctx context.Context, r testbed.Route, w testbed.Launcher, size int) (Reading, uint64, error) {
	const messages = 10000
	port, err := testbed.FreePort()
	if err != nil {
		return Reading{}, 0, err
	}
	bytes := fmt.Sprint(size)
	server := []string{"NPtcp", "-P", fmt.Sprint(port), "-l", bytes, "-u", bytes, "-p", "0", "-n", fmt.Sprint(messages)}
	client := append(server[:len(server):len(server)], "-h", r.Server.IP, "-o", "/dev/stdout")
	out, err := r.Pair(ctx, w, port, server, client)
	if err != nil {
		return Reading{}, 0, err
	}
	seconds, err := ParseNetpipe(out, size)
	return Reading{Value: seconds}, uint64(messages * size), err
}

// netpipeRow reads latency and bandwidth from the line of a size.
func netpipeRow(output string, size int) (ToolResult, error) {
	seconds, err := ParseNetpipe(output, size)
	if err != nil {
		return ToolResult{}, err
	}
	if seconds <= 0 {
		return ToolResult{}, fmt.Errorf("NetPIPE measured %v seconds for %d bytes", seconds, size)
	}
	return ToolResult{Values: map[string]float64{experiment.Latency: seconds, experiment.Bandwidth: float64(size) / seconds}}, nil
}

// netpipeRepeats is how often NetPIPE sends a message there and back: about a second's worth.
func netpipeRepeats(j *Job) int {
	most, least, bytes := 2000, 5, int64(256<<20)
	if experiment.Guests(j.Cell.Setting) { // emulated guests are slow
		most, bytes = 500, 16<<20
	}
	return max(least, min(most, int(bytes*int64(max(j.Seconds, 1))/int64(j.Cell.Size))))
}

// netpipeArgs are the arguments of both sides. NetPIPE's default, sizes of three bytes more and less, takes minutes.
func netpipeArgs(j *Job) []string {
	return []string{"-l", j.sizeText(), "-u", j.sizeText(), "-p", "0", "-n", strconv.Itoa(netpipeRepeats(j))}
}

// netpipeDriver runs NetPIPE over sockets.
var netpipeDriver = Driver{
	Commands: func(j *Job) (server, client []string) {
		server = append([]string{"NPtcp", "-P", j.portText()}, netpipeArgs(j)...)
		return server, append(server[:len(server):len(server)], "-h", j.ServerIP(), "-o", "/dev/stdout")
	},
	Parse:   parseNetpipe,
	Explain: explainNetpipe,
}

// The statuses with which NPtcp exits, modulo 256, and the patterns of what it prints (NetPIPE 3.7.2, src/tcp.c). Its C has exit(-10)
// where connect failed.
var (
	netpipeStatuses = map[string]string{
		"252": "no socket", "251": "the host name is not known", "250": "its server could not bind",
		"246": "its client could not connect", "244": "its server could not accept", "43": "/etc/protocols does not list tcp",
		"145": "the connection broke",
	}
	netpipeStatus  = regexp.MustCompile(`exit status (\d+)`)
	netpipeErrno   = regexp.MustCompile(`errno=(\d+)`)
	netpipeChatter = regexp.MustCompile(`(?m)^(Send and receive buffers are|\(A bug in Linux doubles).*\n?`)
)

// explainNetpipe says what an exit status means, and leaves out what NPtcp always prints.
func explainNetpipe(text string) string {
	text = strings.TrimRight(netpipeChatter.ReplaceAllString(text, ""), "\n")
	found := netpipeStatus.FindStringSubmatch(text)
	if found == nil || netpipeStatuses[found[1]] == "" {
		return text
	}
	why := netpipeStatuses[found[1]]
	if errno := netpipeErrno.FindStringSubmatch(text); errno != nil {
		if n, err := strconv.Atoi(errno[1]); err == nil {
			why += ", " + syscall.Errno(n).Error()
		}
	}
	return strings.Replace(text, found[0], found[0]+" ("+why+")", 1)
}

func parseNetpipe(j *Job, output, _ string) (ToolResult, error) {
	p, err := netpipeRow(output, int(j.Cell.Size))
	p.Samples = int64(netpipeRepeats(j))
	p.Bytes = 2 * float64(p.Samples) * float64(j.Cell.Size)
	return p, err
}
