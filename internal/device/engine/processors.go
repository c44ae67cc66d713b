package engine

import (
	"bytes"
	"errors"
	"os"
	"strconv"
	"time"
)

// idleTime is how long the machine's processors have been idle, all together.
func idleTime() (time.Duration, error) {
	b, err := os.ReadFile("/proc/stat")
	if err != nil {
		return 0, err
	}
	return parseIdle(b)
}

var errNoIdle = errors.New("/proc/stat has no idle time")

// parseIdle reads the first line of /proc/stat (proc_stat(5)): "cpu", and times in hundredths of a second. The fourth
// is idle, and the fifth idle while a disk is waited for.
func parseIdle(b []byte) (time.Duration, error) {
	line, _, _ := bytes.Cut(b, []byte{'\n'})
	f := bytes.Fields(line)
	if len(f) < 6 || string(f[0]) != "cpu" {
		return 0, errNoIdle
	}
	sum := uint64(0)
	for _, x := range f[4:6] {
		n, err := strconv.ParseUint(string(x), 10, 48)
		if err != nil {
			return 0, errNoIdle
		}
		sum += n
	}
	return time.Duration(sum) * (time.Second / 100), nil
}
