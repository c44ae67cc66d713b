package drivers

import (
	"fmt"
	"strconv"
	"strings"

	"vrdma.dev/vrdma/internal/instrument/experiment"
	"vrdma.dev/vrdma/internal/instrument/testbed"
)

// ParseCmtime reads how long all steps of cmtime took together, in seconds: from creating identifiers to destroying them. cmtime does
// each step for all connections before the next.
func ParseCmtime(output string) (seconds float64, err error) {
	_, table, found := strings.Cut(output, "us / conn\n")
	steps := map[string]float64{}
	for line := range strings.Lines(table) {
		name, rest, _ := strings.Cut(line, ":")
		words := strings.Fields(rest)
		if len(words) != 4 {
			continue
		}
		ms, err := strconv.ParseFloat(words[0], 64)
		if err != nil {
			return 0, fmt.Errorf("cmtime printed %q: want milliseconds after the colon", strings.TrimSpace(line))
		}
		steps[strings.TrimSpace(name)] = ms / 1e3
		seconds += ms / 1e3
	}
	if !found || steps["connect"] == 0 || steps["disconnect"] == 0 {
		return 0, fmt.Errorf("cmtime printed no table with connect and disconnect, but:\n%s", testbed.LastLines(output, 5))
	}
	return seconds, nil
}

// cmtimeConnections is how many connections an experiment opens.
const cmtimeConnections = 500

// cmtimeDriver opens and closes connections.
var cmtimeDriver = Driver{
	Commands: func(j *Job) (server, client []string) {
		return []string{"cmtime", "-p", j.portText()}, []string{"cmtime", "-s", j.ServerIP(), "-p", j.portText(), "-c", strconv.Itoa(cmtimeConnections)}
	},
	Parse: func(_ *Job, output, _ string) (ToolResult, error) {
		seconds, err := ParseCmtime(output)
		if err != nil || seconds <= 0 {
			return ToolResult{}, err
		}
		return ToolResult{Values: map[string]float64{experiment.Rate: cmtimeConnections / seconds}, Samples: cmtimeConnections}, nil
	},
	Launcher: func(c experiment.Cell) testbed.Launcher {
		if c.Transport == experiment.Kernel {
			return testbed.KernelCM
		}
		return testbed.WithCM
	},
}
