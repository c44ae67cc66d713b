package bench

import (
	"slices"
	"strings"
	"testing"

	"vrdma/internal/experiment"
)

// Every tool that an experiment can name has a driver, and its commands say what the cell says.
func TestDrivers(t *testing.T) {
	for _, name := range experiment.ToolNames() {
		d, found := drivers[name]
		if !found {
			t.Errorf("no driver for %s", name)
			continue
		}
		server, client := d.commands(experiment.Cell{Tool: name, Size: 4096, Pairs: 1, Wait: experiment.Event}, "10.0.0.1", 12345, 3)
		both := strings.Join(server, " ") + "|" + strings.Join(client, " ")
		if !slices.Contains(server, "12345") || !slices.Contains(client, "12345") || !slices.Contains(client, "10.0.0.1") {
			t.Errorf("%s: %s", name, both)
		}
		if strings.HasPrefix(name, "ib_") && (!slices.Contains(server, "-e") || !slices.Contains(client, "4096") || slices.Contains(client, "-D")) {
			t.Errorf("%s: %s: want events and a size, and no time, which perftest refuses with events", name, both)
		}
		if _, err := d.parse("Connection refused"); err == nil {
			t.Errorf("%s: garbage was a value", name)
		}
	}
	if n := len(drivers); n != len(experiment.ToolNames()) {
		t.Errorf("%d drivers for %d tools", n, len(experiment.ToolNames()))
	}
}

func TestProof(t *testing.T) {
	tests := []struct {
		transport string
		bytes     float64
		wrong     bool
	}{{experiment.TCP, 0, false}, {experiment.TCP, 4096, true}, {experiment.Verbs, 4096, false}, {experiment.Sockets, 0, true}}
	for _, test := range tests {
		got := proof(experiment.Cell{Transport: test.transport}, &experiment.Measurement{Bytes: test.bytes})
		if strings.HasPrefix(got, "WRONG") != test.wrong {
			t.Errorf("%s with %v bytes: %s", test.transport, test.bytes, got)
		}
	}
}
