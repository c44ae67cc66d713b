package drivers

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"

	"vrdma.dev/vrdma/internal/instrument/experiment"
	"vrdma.dev/vrdma/internal/instrument/testbed"
)

// ParseIperf3 reads from iperf3 -J at which rate the receiver got data, in bytes/s, and how many bytes it got.
func ParseIperf3(output string) (rate float64, bytes uint64, err error) {
	var result struct {
		Error string `json:"error"`
		End   struct {
			Received struct {
				Bytes uint64  `json:"bytes"`
				Rate  float64 `json:"bits_per_second"`
			} `json:"sum_received"`
		} `json:"end"`
	}
	if err := json.Unmarshal([]byte(output), &result); err != nil {
		return 0, 0, fmt.Errorf("iperf3 -J printed no JSON: %w:\n%s", err, testbed.LastLines(output, 5))
	}
	if result.Error != "" {
		return 0, 0, errors.New("iperf3: " + result.Error)
	}
	if result.End.Received.Bytes == 0 {
		return 0, 0, errors.New("iperf3 says that no bytes arrived")
	}
	return result.End.Received.Rate / 8, result.End.Received.Bytes, nil
}

// RunIperf3 runs one stream for a second.
func RunIperf3(ctx context.Context, r testbed.Route, w testbed.Launcher, options ...string) (rate float64, bytes uint64, err error) {
	port, err := testbed.FreePort()
	if err != nil {
		return 0, 0, err
	}
	listen := fmt.Sprint(port)
	out, err := r.Pair(ctx, w, port, []string{"iperf3", "-s", "-1", "-p", listen},
		append([]string{"iperf3", "-c", r.Server.IP, "-p", listen, "-t", "1", "-J"}, options...))
	if err != nil {
		return 0, 0, err
	}
	return ParseIperf3(out)
}

// iperf3Driver runs one stream.
var iperf3Driver = Driver{
	Commands: func(j *Job) (server, client []string) {
		return []string{"iperf3", "-s", "-1", "-p", j.portText()}, []string{"iperf3", "-c", j.ServerIP(), "-p", j.portText(), "-t", j.secondsText(), "-J"}
	},
	Parse: func(_ *Job, output, _ string) (ToolResult, error) {
		rate, bytes, err := ParseIperf3(output)
		return ToolResult{Values: map[string]float64{experiment.Bandwidth: rate}, Bytes: float64(bytes)}, err
	},
}
