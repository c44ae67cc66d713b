package experiment

import (
	"fmt"
	"strconv"
	"strings"
)

// Ticks is the time of all processors since boot, in ticks of 10 ms.
type Ticks struct {
	Busy  float64 // user (which includes guests), nice, system, irq and softirq
	Steal float64 // taken by the hypervisor
	All   float64
}

// ParseTicks reads the first line of /proc/stat.
func ParseTicks(stat string) (t Ticks, err error) {
	line, _, _ := strings.Cut(stat, "\n")
	words := strings.Fields(line)
	if len(words) < 9 || words[0] != "cpu" {
		return t, fmt.Errorf("/proc/stat begins with %q, want cpu and its times", line)
	}
	for i, word := range words[1:9] {
		n, err := strconv.ParseUint(word, 10, 64)
		if err != nil {
			return t, fmt.Errorf("/proc/stat begins with %q: %w", line, err)
		}
		t.All += float64(n)
		switch i {
		case 0, 1, 2, 5, 6:
			t.Busy += float64(n)
		case 7:
			t.Steal = float64(n)
		}
	}
	return t, nil
}
