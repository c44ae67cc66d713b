package drivers

import (
	"fmt"
	"regexp"
	"strconv"

	"vrdma.dev/vrdma/internal/instrument/experiment"
	"vrdma.dev/vrdma/internal/instrument/testbed"
)

var (
	devinfoState = regexp.MustCompile(`(?m)^\s*state:\s+(\S+)`)
	devinfoWidth = regexp.MustCompile(`(?m)^\s*active_width:\s+(\d+)X`)
	devinfoSpeed = regexp.MustCompile(`(?m)^\s*active_speed:\s+([0-9.]+) Gbps`)
)

// ParseDevinfo reads the speed of the first port from ibv_devinfo -v, in bytes/s.
func ParseDevinfo(output string) (rate float64, err error) {
	state, width, speed := devinfoState.FindStringSubmatch(output), devinfoWidth.FindStringSubmatch(output), devinfoSpeed.FindStringSubmatch(output)
	if state == nil || width == nil || speed == nil {
		return 0, fmt.Errorf("ibv_devinfo showed no port with state, width and speed, but:\n%s", testbed.LastLines(output, 5))
	}
	if state[1] != "PORT_ACTIVE" {
		return 0, fmt.Errorf("the port is %s: want PORT_ACTIVE", state[1])
	}
	lanes, err1 := strconv.ParseFloat(width[1], 64)
	gigabits, err2 := strconv.ParseFloat(speed[1], 64)
	if err1 != nil || err2 != nil || lanes*gigabits <= 0 {
		return 0, fmt.Errorf("the port has %s lanes of %s Gb/s", width[1], speed[1])
	}
	return lanes * gigabits * 1e9 / 8, nil
}

// devinfoDriver shows the port as the first step of a lab does: device, speed, links and processors. It fails only without a device;
// links and processors are for the record.
var devinfoDriver = Driver{
	Commands: func(*Job) (server, client []string) {
		return nil, []string{"sh", "-c", "ibv_devinfo -v; status=$?; ip -brief link; lscpu; exit $status"}
	},
	Parse: func(_ *Job, output, _ string) (ToolResult, error) {
		rate, err := ParseDevinfo(output)
		return ToolResult{Values: map[string]float64{experiment.Bandwidth: rate}}, err
	},
}
