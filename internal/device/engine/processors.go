package engine

import (
	"bytes"
	"errors"
	"os"
	"strconv"
	"time"

	"golang.org/x/sys/unix"
)

// idleTime is how long the processors that this process may use have been idle, all together.
func idleTime() (time.Duration, error) {
	var may unix.CPUSet
	if err := unix.SchedGetaffinity(os.Getpid(), &may); err != nil { // loops change their own for a moment only
		return 0, err
	}
	b, err := os.ReadFile("/proc/stat")
	if err != nil {
		return 0, err
	}
	return parseIdle(b, may.IsSet)
}

var errNoIdle = errors.New("/proc/stat has no idle time")

// parseIdle reads the lines of /proc/stat (proc_stat(5)) about some processors: "cpu" and the processor's number, and
// times in hundredths of a second. The fourth is idle, and the fifth idle while a disk is waited for.
func parseIdle(b []byte, which func(cpu int) bool) (time.Duration, error) {
	sum, found := uint64(0), false
	for line := range bytes.Lines(b) {
		f := bytes.Fields(line)
		if len(f) < 6 || !bytes.HasPrefix(f[0], []byte("cpu")) {
			continue
		}
		cpu, err := strconv.Atoi(string(f[0][len("cpu"):]))
		if err != nil || !which(cpu) { // or it is the sum of all
			continue
		}
		for _, x := range f[4:6] {
			n, err := strconv.ParseUint(string(x), 10, 48)
			if err != nil {
				return 0, errNoIdle
			}
			sum += n
		}
		found = true
	}
	if !found {
		return 0, errNoIdle
	}
	return time.Duration(sum) * (time.Second / 100), nil
}
