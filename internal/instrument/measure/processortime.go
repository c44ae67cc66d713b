package measure

import (
	"time"

	"vrdma.dev/vrdma/internal/instrument/experiment"
)

// groupsBetween returns the processor time of a run by control group, in seconds. It omits groups without processor time: their
// programs run in guests or on another machine.
func groupsBetween(before, after map[string]time.Duration) map[string]float64 {
	if before == nil || after == nil {
		return nil
	}
	all := make(map[string]float64)
	for role, used := range after {
		if took := used - before[role]; took > 0 {
			all[role] = took.Seconds()
		}
	}
	return all
}

// addRest adds the processor time of no known process: the kernel's interrupts and other programs. A guest's programs run within QEMU.
func addRest(m *experiment.Measurement) {
	known := m.CPU["daemon"]
	if qemu, guests := m.CPU["qemu"]; guests {
		known += qemu
	} else {
		known += m.CPU["client"] + m.CPU["server"]
	}
	m.CPU["rest"] = max(0, m.CPU["machine"]-known)
}
