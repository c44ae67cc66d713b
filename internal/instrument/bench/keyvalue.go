package bench

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"

	"vrdma.dev/vrdma/internal/instrument/experiment"
)

// ParseKeyValue reads the row of a way and a mix from vrdma lab --json.
func ParseKeyValue(output, how, mix string) (printed, error) {
	var rows []struct {
		Way        string  `json:"way"`
		Mix        string  `json:"mix"`
		Operations int64   `json:"operations"`
		Rate       float64 `json:"operations_per_second"`
		P50        float64 `json:"p50_us"`
		P99        float64 `json:"p99_us"`
		P999       float64 `json:"p999_us"`
	}
	if err := json.Unmarshal([]byte(output), &rows); err != nil {
		return printed{}, fmt.Errorf("vrdma lab --json printed no JSON: %w:\n%s", err, lastLines(output, 5))
	}
	for _, r := range rows {
		if r.Way == how && r.Mix == mix && r.Operations > 0 {
			return printed{samples: r.Operations, values: map[string]float64{
				experiment.Latency: r.P50 * 1e-6, "p99": r.P99 * 1e-6, "p999": r.P999 * 1e-6, experiment.Rate: r.Rate,
			}}, nil
		}
	}
	return printed{}, fmt.Errorf("vrdma lab printed no row for %s by %s", mix, how)
}

// keyValueDriver runs the lab's key-value store: reads or updates in one way.
func keyValueDriver(how, mix string) driver {
	return driver{
		commands: func(j *job) (server, client []string) {
			at := j.ip() + ":" + j.listen()
			server = []string{j.route.Server.vrdma(), "lab", "serve", "--socket", j.route.Server.Socket, "--listen", at}
			client = []string{j.route.Client.vrdma(), "lab", "--socket", j.route.Client.Socket, "--server", at, "--json",
				"--ways", how, "--mixes", mix, "--operations", strconv.Itoa(latencyMessages)}
			if !j.event() {
				client = append(client, "--poll")
			}
			return server, client
		},
		parse: func(_ *job, output, _ string) (printed, error) { return ParseKeyValue(output, how, mix) },
		way:   func(experiment.Cell) way { return own },
		prepare: func(_ context.Context, _ *Lab, j *job) error {
			if j.route.Server.box != "" {
				return errors.New("the key-value store is a program of vrdma's, which is not in the container")
			}
			return nil
		},
	}
}
