package testbed

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"
)

// A Load is what a daemon holds of the machine's resources.
type Load struct {
	Memory    float64 `json:"memory"`    // VmRSS in bytes, with the rings and memory it shares with programs
	Anonymous float64 `json:"anonymous"` // RssAnon in bytes: its own memory
	Mappings  int     `json:"mappings"`
	Files     int     `json:"files"`
}

// Load reads what the daemon holds now.
func (d *Daemon) Load() (l Load, err error) {
	dir := fmt.Sprintf("/proc/%d/", d.Cmd.Process.Pid)
	status, err1 := os.ReadFile(dir + "status")
	maps, err2 := os.ReadFile(dir + "maps")
	files, err3 := os.ReadDir(dir + "fd")
	if err := errors.Join(err1, err2, err3); err != nil {
		return Load{}, err
	}
	if l.Memory, err = parseMemory(string(status), "VmRSS"); err != nil {
		return Load{}, err
	}
	if l.Anonymous, err = parseMemory(string(status), "RssAnon"); err != nil {
		return Load{}, err
	}
	l.Mappings, l.Files = bytes.Count(maps, []byte("\n")), len(files)
	return l, nil
}

// settleTimeout is how long a daemon may take to release what an attacker held.
const settleTimeout = 20 * time.Second

// Settle waits until the daemon holds about as many mappings and descriptors as before, but at most settleTimeout. It returns what the
// daemon holds then.
func (d *Daemon) Settle(ctx context.Context, before Load) (Load, error) {
	const slack = 16 // descriptors and mappings that the Go runtime keeps
	for end := time.Now().Add(settleTimeout); ; {
		l, err := d.Load()
		if err != nil || time.Now().After(end) || l.Files <= before.Files+slack && l.Mappings <= before.Mappings+slack {
			return l, err
		}
		if err := Sleep(ctx, SettleTime); err != nil {
			return Load{}, err
		}
	}
}

// Ended reports whether the daemon has ended.
func (d *Daemon) Ended() bool {
	select {
	case <-d.ended:
		return true
	default:
		return false
	}
}

// Died waits up to two seconds for the end of a daemon that does not answer, and reports whether it ended.
func (d *Daemon) Died(ctx context.Context) bool {
	for end := time.Now().Add(2 * time.Second); !d.Ended() && time.Now().Before(end); {
		if Sleep(ctx, SettleTime) != nil {
			break
		}
	}
	return d.Ended()
}

// LastWords returns the line of the daemon's log that reports a crash, else its last line.
func (d *Daemon) LastWords() string {
	text, _ := os.ReadFile(d.log.Name()) // it may be empty
	for line := range strings.Lines(string(text)) {
		for _, word := range []string{"fatal error:", "panic:", "runtime:"} {
			if strings.HasPrefix(line, word) {
				return strings.TrimSpace(line)
			}
		}
	}
	return LastLines(string(text), 1)
}

// parseMemory reads a field of /proc/PID/status or /proc/meminfo, in bytes.
func parseMemory(status, field string) (float64, error) {
	for line := range strings.Lines(status) {
		if rest, found := strings.CutPrefix(line, field+":"); found {
			number, _, _ := strings.Cut(strings.TrimSpace(rest), " ")
			kib, err := strconv.ParseFloat(number, 64)
			return kib * 1024, err
		}
	}
	return 0, fmt.Errorf("/proc/PID/status has no %s", field)
}
