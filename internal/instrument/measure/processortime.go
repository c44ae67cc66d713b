package measure

import (
	"time"

	"vrdma.dev/vrdma/internal/instrument/experiment"
)

// groupsBetween is the processor time of a run by control group, in seconds. A group that took none had nobody in it, as those of
// programs in guests and on other machines: who starts takes some, and a daemon is asked for its counters.
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

// addRest adds what nobody was charged with: the kernel's interrupts, and other programs. A guest's programs run
// within QEMU.
func addRest(m *experiment.Measurement) {
	known := m.CPU["daemon"]
	if qemu, guests := m.CPU["qemu"]; guests {
		known += qemu
	} else {
		known += m.CPU["client"] + m.CPU["server"]
	}
	m.CPU["rest"] = max(0, m.CPU["machine"]-known)
}
