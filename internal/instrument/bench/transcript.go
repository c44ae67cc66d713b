package bench

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

// A transcript is what a program prints, with the time of each line. The zero value is empty.
type transcript struct {
	mu    sync.Mutex
	text  []byte
	lines []stampedLine
	begun int // where the line that has no end yet begins
}

// A stampedLine is a line with numbers, and when it came.
type stampedLine struct {
	at      time.Time
	numbers []float64
}

func (t *transcript) Write(p []byte) (int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.text = append(t.text, p...)
	for {
		n := bytes.IndexByte(t.text[t.begun:], '\n')
		if n < 0 {
			return len(p), nil
		}
		if row, ok := numbers(string(t.text[t.begun : t.begun+n])); ok {
			t.lines = append(t.lines, stampedLine{time.Now(), row})
		}
		t.begun += n + 1
	}
}

func (t *transcript) String() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return string(t.text)
}

// between are the lines that came in a time.
func (t *transcript) between(from, to time.Time) (list []stampedLine) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, l := range t.lines {
		if !l.at.Before(from) && !l.at.After(to) {
			list = append(list, l)
		}
	}
	return list
}

// bandwidthColumns is how many numbers a line of perftest's bandwidth tools has.
const bandwidthColumns = 5

// numbers reads a line of a perftest bandwidth tool.
func numbers(line string) ([]float64, bool) {
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

// groupTime is the processor time of all processes of a group, with that of those which they waited for;
// errEnded if there are none any more.
func groupTime(group int) (total time.Duration, err error) {
	files, err := filepath.Glob("/proc/[0-9]*/stat")
	if err != nil {
		return 0, err
	}
	found := false
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			continue // it ended meanwhile
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
		return 0, errEnded
	}
	return total, nil
}
