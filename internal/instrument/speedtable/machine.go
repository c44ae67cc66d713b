package speedtable

import (
	"fmt"

	"vrdma.dev/vrdma/internal/instrument/experiment"
)

// A Machine is where a report was measured.
type Machine struct {
	CPU    string `json:"cpu"`
	CPUs   int    `json:"cpus"`
	Kernel string `json:"kernel"`
}

// ThisMachine describes this machine.
func ThisMachine() Machine {
	m := experiment.ThisMachine()
	return Machine{CPU: m.Processor, CPUs: m.Processors, Kernel: m.Kernel}
}

func (m Machine) String() string { return fmt.Sprintf("%s, %d CPUs, %s", m.CPU, m.CPUs, m.Kernel) }
