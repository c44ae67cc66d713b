package experiment

import (
	"bufio"
	"os"
	"runtime"
	"strings"

	"golang.org/x/sys/unix"
)

// A Machine is where results were measured.
type Machine struct {
	Kernel     string            `json:"kernel"`
	Processor  string            `json:"processor"`
	Processors int               `json:"processors"`
	Memory     int64             `json:"memory"`
	Programs   map[string]string `json:"programs,omitempty"` // versions
}

// ThisMachine describes this machine, without the versions of programs.
func ThisMachine() Machine {
	m := Machine{Processor: "unknown CPU", Processors: runtime.NumCPU()}
	var name unix.Utsname
	if unix.Uname(&name) == nil {
		m.Kernel = "Linux " + unix.ByteSliceToString(name.Release[:])
	}
	var info unix.Sysinfo_t
	if unix.Sysinfo(&info) == nil {
		m.Memory = int64(info.Totalram) * int64(info.Unit)
	}
	file, err := os.Open("/proc/cpuinfo")
	if err != nil {
		return m
	}
	defer file.Close()
	for lines := bufio.NewScanner(file); lines.Scan(); {
		if key, value, found := strings.Cut(lines.Text(), ":"); found && strings.TrimSpace(key) == "model name" {
			m.Processor = strings.TrimSpace(value)
			break
		}
	}
	return m
}
