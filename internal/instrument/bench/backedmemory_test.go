package bench

import "testing"

// Memory must be available. A kernel that does not report it is trusted.
func TestRoom(t *testing.T) {
	const meminfo = "MemTotal:        4000 kB\nMemFree:          10 kB\nMemAvailable:    2000 kB\n"
	for _, test := range []struct {
		text   string
		n      int64
		enough bool
	}{{meminfo, 2000 << 10, true}, {meminfo, 2001 << 10, false}, {"MemTotal: 1 kB\n", 1 << 40, true}, {"\nMemAvailable: x", 1 << 40, true}} {
		if err := checkMemory(test.text, test.n); (err == nil) != test.enough {
			t.Errorf("%q, %d: %v", test.text, test.n, err)
		}
	}
}
