package frontdoor

import (
	"fmt"
	"os"
	"strconv"
	"strings"
	"sync"
)

// A place is where a process runs: its namespaces, as the links in /proc name them. Empty:
// we may not know.
type place struct {
	process int // its number here
	pid     string
	net     string
}

func placeOf(process int) place {
	read := func(name string) string {
		link, _ := os.Readlink(fmt.Sprintf("/proc/%d/ns/%s", process, name))
		return link
	}
	return place{process: process, pid: read("pid"), net: read("net")}
}

// here is the daemon's own place.
var here = sync.OnceValue(func() place { return placeOf(os.Getpid()) })

// sees reports the number that another process has for one in this place; 0: it cannot be
// seen from here. Both are told apart by their process namespaces: one sees what is in its
// own, and who is in the daemon's sees everything that the daemon does. Of another user's
// processes an unprivileged daemon learns only how deep they are: those that are as deep as
// it is are in its own.
func (p place) sees(process int) int {
	other := placeOf(process)
	numbers := namespacedPids(process)
	switch {
	case len(numbers) == 0: // gone
		return 0
	case p.pid == "" || other.pid == "":
		if len(numbers) == 1 && len(namespacedPids(p.process)) == 1 {
			return process
		}
		return 0
	case p.pid == other.pid:
		return numbers[len(numbers)-1]
	case p.pid == here().pid:
		return process
	}
	return 0
}

// namespacedPids are the numbers of a process, in the daemon's namespace and each one below it
// down to its own.
func namespacedPids(process int) (out []int) {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", process))
	if err != nil {
		return nil
	}
	for line := range strings.Lines(string(text)) {
		if rest, ok := strings.CutPrefix(line, "NSpid:"); ok {
			for _, f := range strings.Fields(rest) {
				n, err := strconv.Atoi(f)
				if err != nil {
					return nil
				}
				out = append(out, n)
			}
		}
	}
	return out
}
