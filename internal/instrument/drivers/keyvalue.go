package drivers

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"

	"vrdma.dev/vrdma/internal/instrument/experiment"
	"vrdma.dev/vrdma/internal/instrument/testbed"
)

// ParseKeyValue reads the row of a way and a mix from vrdma lab --json.
func ParseKeyValue(output, how, mix string) (ToolResult, error) {
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
		return ToolResult{}, fmt.Errorf("vrdma lab --json printed no JSON: %w:\n%s", err, testbed.LastLines(output, 5))
	}
	for _, r := range rows {
		if r.Way == how && r.Mix == mix && r.Operations > 0 {
			return ToolResult{Samples: r.Operations, Values: map[string]float64{
				experiment.Latency: r.P50 * 1e-6, "p99": r.P99 * 1e-6, "p999": r.P999 * 1e-6, experiment.Rate: r.Rate,
			}}, nil
		}
	}
	return ToolResult{}, fmt.Errorf("vrdma lab printed no row for %s by %s", mix, how)
}

// keyValueDriver runs the lab's key-value store: reads or updates, in one way.
func keyValueDriver(how, mix string) Driver {
	return Driver{
		Commands: func(j *Job) (server, client []string) {
			at := j.ServerIP() + ":" + j.portText()
			server = []string{j.Route.Server.Vrdma(), "lab", "serve", "--socket", j.Route.Server.Socket, "--listen", at}
			client = []string{j.Route.Client.Vrdma(), "lab", "--socket", j.Route.Client.Socket, "--server", at, "--json",
				"--ways", how, "--mixes", mix, "--operations", strconv.Itoa(latencyMessages)}
			if !j.waitsForEvents() {
				client = append(client, "--poll")
			}
			return server, client
		},
		Parse:    func(_ *Job, output, _ string) (ToolResult, error) { return ParseKeyValue(output, how, mix) },
		Launcher: func(experiment.Cell) testbed.Launcher { return testbed.VrdmaCommand },
		Prepare: func(_ context.Context, _ *testbed.Lab, j *Job) error {
			if j.Route.Server.Container != "" {
				return errors.New("the key-value store is a program of vrdma's, which is not in the container")
			}
			return nil
		},
	}
}
