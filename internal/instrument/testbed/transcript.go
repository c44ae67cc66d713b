package testbed

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"time"
)

// A Transcript is the output of a program, with the time of each line of numbers. The zero value is empty.
type Transcript struct {
	mu        sync.Mutex
	text      []byte
	lines     []TimedLine
	lineStart int // offset of the incomplete last line
}

// A TimedLine is the numbers of a line and the time it was printed.
type TimedLine struct {
	At      time.Time
	Numbers []float64
}

// Write appends output and notes when each line was complete.
func (t *Transcript) Write(p []byte) (int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.text = append(t.text, p...)
	for {
		n := bytes.IndexByte(t.text[t.lineStart:], '\n')
		if n < 0 {
			return len(p), nil
		}
		if row, ok := parseBandwidthLine(string(t.text[t.lineStart : t.lineStart+n])); ok {
			t.lines = append(t.lines, TimedLine{time.Now(), row})
		}
		t.lineStart += n + 1
	}
}

// String returns all output.
func (t *Transcript) String() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return string(t.text)
}

// Between returns the lines that were printed from one time to another.
func (t *Transcript) Between(from, to time.Time) (list []TimedLine) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, l := range t.lines {
		if !l.At.Before(from) && !l.At.After(to) {
			list = append(list, l)
		}
	}
	return list
}

// bandwidthColumns is the number of columns of perftest's bandwidth tools.
const bandwidthColumns = 5

// parseBandwidthLine reads a line of a perftest bandwidth tool.
func parseBandwidthLine(line string) ([]float64, bool) {
	words := strings.Fields(line)
	if len(words) != bandwidthColumns {
		return nil, false
	}
	list := make([]float64, len(words))
	for i, w := range words {
		var err error
		if list[i], err = strconv.ParseFloat(w, 64); err != nil {
			return nil, false
		}
	}
	return list, true
}

// GroupCPUTime returns the processor time of all processes of a process group and of the children that they waited for. It returns
// ErrEnded if the group has no process.
func GroupCPUTime(group int) (total time.Duration, err error) {
	files, err := filepath.Glob("/proc/[0-9]*/stat")
	if err != nil {
		return 0, err
	}
	found := false
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			continue // it has ended
		}
		_, rest, ok := strings.Cut(string(text[max(0, bytes.LastIndexByte(text, ')')):]), ") ")
		words := strings.Fields(rest)
		if !ok || len(words) < 15 || words[2] != strconv.Itoa(group) {
			continue
		}
		found = true
		for _, word := range words[11:15] {
			n, err := strconv.ParseInt(word, 10, 64)
			if err != nil {
				return 0, fmt.Errorf("%s holds %q", file, text)
			}
			total += time.Duration(n) * 10 * time.Millisecond
		}
	}
	if !found {
		return 0, ErrEnded
	}
	return total, nil
}
