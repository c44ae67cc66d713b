package budget

import (
	"bytes"
	"math"
	"os"
	"strconv"

	"golang.org/x/sys/unix"
)

// A Machine has the resources to divide.
type Machine struct {
	Files    uint64 // RLIMIT_NOFILE of the daemon
	Mappings uint64 // vm.max_map_count
	Memory   uint64 // bytes, of the machine or of the control group
	Physical uint64 // bytes of the machine
}

const (
	// ownFiles are the descriptors that the daemon itself needs: sockets, epoll, counter files.
	ownFiles = 256
	// ownMappings are the mappings of the Go runtime and libraries. The runtime crashes without them.
	ownMappings = 8192
	// A mapping is a gibibyte, and the address space of a process is 2^47 bytes.
	mostMappings = 1 << 16
	// Limits of Tools: `vrdma run` is one for a moment, and many may start at once.
	toolsOfAll, toolsOfOthers, toolsOfUser = 4096, 1024, 256
)

// FewestFiles is the minimum for a daemon to serve a few programs: half of it is for itself (mostly counter files), and a program with a
// device takes eight.
const FewestFiles = 128

// ThisMachine asks the kernel. An unknown limit counts as none. Go has raised the soft limit of open files to the hard limit before main.
func ThisMachine() Machine {
	m := Machine{Files: math.MaxInt64, Mappings: math.MaxInt64, Memory: math.MaxInt64}
	var r unix.Rlimit
	if unix.Getrlimit(unix.RLIMIT_NOFILE, &r) == nil {
		m.Files = min(m.Files, r.Cur)
	}
	m.Mappings = min(m.Mappings, readNumber("/proc/sys/vm/max_map_count"))
	var i unix.Sysinfo_t
	if unix.Sysinfo(&i) == nil {
		m.Memory = uint64(i.Totalram) * uint64(i.Unit)
	}
	m.Physical = m.Memory
	m.Memory = min(m.Memory, groupMemory("/proc/self"))
	return m
}

// readNumber reads a file with one number; "max" and a read error mean no limit.
func readNumber(path string) uint64 {
	text, err := os.ReadFile(path)
	if err != nil {
		return math.MaxInt64
	}
	n, err := strconv.ParseUint(string(bytes.TrimSpace(text)), 10, 63)
	if err != nil {
		return math.MaxInt64
	}
	return n
}

// Limits divides the machine. A user gets half of what all users except the owner may have together, so that no user starves
// another. The owner keeps at least a quarter. The owner's registered memory is not limited here: its pages belong to the
// programs, and every process has its own limit (Limits.Memory of the NIC).
func (m Machine) Limits() Limits {
	all := Bill{
		Files:    less(m.Files, ownFiles),
		Mappings: less(min(m.Mappings, mostMappings), ownMappings),
		State:    m.Memory / 4,
		Rings:    m.Memory,
		Memory:   math.MaxInt64,
		Holes:    math.MaxInt64,
		Tools:    toolsOfAll,
	}
	others := Bill{
		Files:    all[Files] / 4 * 3,
		Mappings: all[Mappings] / 4 * 3,
		State:    m.Memory / 8,
		Rings:    m.Memory / 4,
		Memory:   m.Memory / 4 * 3,
		Holes:    m.Memory / 4,
		Tools:    toolsOfOthers,
	}
	user := others
	for k := range user {
		user[k] /= 2
	}
	user[Tools] = toolsOfUser
	return Limits{All: all, Others: others, User: user}
}

// less returns n minus what the daemon needs itself, but at least half of n.
func less(n, own uint64) uint64 {
	return max(n/2, n-min(n, own))
}
