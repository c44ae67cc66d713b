package demo

import (
	"fmt"
	"io"
	"strings"
	"time"
)

// A sample says how many bytes had moved by a time.
type sample struct {
	at    time.Time
	bytes uint64
}

// A mark is a moment on the time axis, with what begins there.
type mark struct {
	at   time.Time
	what string
}

// longestGap returns the longest time in which no data moved: the last sample before it, and the first one after it.
func longestGap(samples []sample) (from, to time.Time) {
	if len(samples) == 0 {
		return from, to
	}
	last := samples[0] // the first one with this number of bytes
	from, to = last.at, last.at
	for _, s := range samples[1:] {
		if s.bytes == last.bytes {
			continue
		}
		if s.at.Sub(last.at) > to.Sub(from) {
			from, to = last.at, s.at
		}
		last = s
	}
	return from, to
}

// Dimensions of the picture, in characters.
const (
	columns = 72
	rows    = 8
)

// rates returns bytes per second in equal periods from a time until the last sample.
func rates(samples []sample, from time.Time, periods int) (perSecond []float64, period time.Duration) {
	perSecond = make([]float64, periods)
	if len(samples) < 2 {
		return perSecond, 0
	}
	period = samples[len(samples)-1].at.Sub(from) / time.Duration(periods)
	if period <= 0 {
		return perSecond, 0
	}
	for i, s := range samples[1:] {
		// The bytes between two samples spread over the time between them.
		began, ended := samples[i].at, s.at
		span := ended.Sub(began)
		for p := max(0, int(began.Sub(from)/period)); p < periods && span > 0; p++ {
			at := from.Add(time.Duration(p) * period)
			both := minTime(ended, at.Add(period)).Sub(maxTime(began, at))
			if at.After(ended) {
				break
			}
			if both > 0 {
				perSecond[p] += float64(s.bytes-samples[i].bytes) * both.Seconds() / span.Seconds() / period.Seconds()
			}
		}
	}
	return perSecond, period
}

func minTime(a, b time.Time) time.Time {
	if a.Before(b) {
		return a
	}
	return b
}

func maxTime(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}
	return b
}

// draw draws how fast data moved, from a time on, with marks below the time axis.
func draw(w io.Writer, samples []sample, from time.Time, marks []mark) {
	perSecond, period := rates(samples, from, columns)
	if period == 0 {
		return
	}
	most := 0.0
	for _, r := range perSecond {
		most = max(most, r)
	}
	if most == 0 {
		most = 1
	}
	fmt.Fprintln(w)
	for row := rows - 1; row >= 0; row-- {
		label := ""
		switch row {
		case rows - 1:
			label = fmt.Sprintf("%.1f GB/s", most/1e9)
		case 0:
			label = "0"
		}
		line := make([]rune, columns)
		for c, r := range perSecond {
			line[c] = block(r/most*rows - float64(row))
		}
		fmt.Fprintf(w, "%10s │%s\n", label, strings.TrimRight(string(line), " "))
	}
	fmt.Fprintf(w, "%10s └%s\n", "", strings.Repeat("─", columns))
	for i, m := range marks {
		column := min(max(0, int(m.at.Sub(from)/period)), columns-1)
		fmt.Fprintf(w, "%10s  %s╵%5.2f s %s\n", "", strings.Repeat(" ", column), m.at.Sub(marks[0].at).Seconds(), marks[i].what)
	}
}

// block is a character of a bar that fills this share of it.
func block(share float64) rune {
	const eighths = " ▁▂▃▄▅▆▇█"
	blocks := []rune(eighths)
	n := int(share * 8)
	if share > 0 && n == 0 {
		n = 1
	}
	return blocks[min(max(n, 0), 8)]
}
