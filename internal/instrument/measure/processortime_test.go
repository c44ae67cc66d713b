package measure

import (
	"testing"

	"vrdma.dev/vrdma/internal/instrument/experiment"
)

// TestRest: rest is the machine's time less that of all roles. Programs of a guest are part of QEMU.
func TestRest(t *testing.T) {
	m := experiment.Measurement{CPU: map[string]float64{"machine": 4, "client": 1, "server": 0.5, "daemon": 1}}
	if addRest(&m); m.CPU["rest"] != 1.5 {
		t.Errorf("rest %v, want 1.5", m.CPU["rest"])
	}
	m.CPU = map[string]float64{"machine": 4, "client": 1, "server": 0.5, "daemon": 1, "qemu": 2}
	if addRest(&m); m.CPU["rest"] != 1 {
		t.Errorf("with guests %v, want 1", m.CPU["rest"])
	}
	m.CPU = map[string]float64{"machine": 1, "client": 1.2}
	if addRest(&m); m.CPU["rest"] != 0 {
		t.Errorf("ticks are coarse: %v, want 0", m.CPU["rest"])
	}
}
