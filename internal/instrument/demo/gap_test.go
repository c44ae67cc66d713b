package demo

import (
	"strings"
	"testing"
	"time"
)

// flow returns samples every 10 ms: 1 GB/s, nothing for a while, and 2 GB/s.
func flow(first, gap, last int) (samples []sample) {
	at, bytes := time.Unix(1000, 0), uint64(0)
	for i := range first + gap + last {
		samples = append(samples, sample{at, bytes})
		at = at.Add(10 * time.Millisecond)
		switch {
		case i < first:
			bytes += 10_000_000
		case i >= first+gap:
			bytes += 20_000_000
		}
	}
	return samples
}

func TestLongestGap(t *testing.T) {
	for _, c := range []struct {
		name             string
		first, gap, last int
		want             time.Duration
	}{
		{"none", 10, 0, 10, 10 * time.Millisecond},
		{"in the middle", 10, 50, 10, 510 * time.Millisecond},
		{"at the end", 10, 50, 0, 10 * time.Millisecond}, // it has not ended
	} {
		from, to := longestGap(flow(c.first, c.gap, c.last))
		if got := to.Sub(from); got != c.want {
			t.Errorf("%s: the longest gap is %v, want %v", c.name, got, c.want)
		}
	}
	if from, to := longestGap(nil); !from.Equal(to) {
		t.Errorf("without samples there is a gap from %v to %v", from, to)
	}
}

func TestRates(t *testing.T) {
	samples := flow(50, 50, 51)
	got, period := rates(samples, samples[0].at, 15)
	if period != 100*time.Millisecond {
		t.Errorf("a period is %v, want 100ms", period)
	}
	for i, r := range got {
		want := []float64{1e9, 0, 2e9}[i/5]
		if r < want*0.999-1 || r > want*1.001+1 {
			t.Errorf("period %d: %g B/s, want %g", i, r, want)
		}
	}
}

func TestDraw(t *testing.T) {
	samples := flow(50, 50, 51)
	var out strings.Builder
	began := samples[50].at
	draw(&out, samples, samples[0].at, []mark{{began, "checkpoint"}, {began.Add(300 * time.Millisecond), "restore"}})
	lines := strings.Split(strings.Trim(out.String(), "\n"), "\n")
	if len(lines) != rows+3 {
		t.Fatalf("the picture has %d lines, want %d:\n%s", len(lines), rows+3, out.String())
	}
	bottom := []rune(lines[rows-1])
	begin := len([]rune("         0 │"))
	for _, c := range []struct {
		column int
		want   rune
	}{{0, '█'}, {columns / 2, ' '}, {columns - 1, '█'}} {
		if got := bottom[begin+c.column]; got != c.want {
			t.Errorf("column %d of the lowest row is %q, want %q:\n%s", c.column, got, c.want, out.String())
		}
	}
	if !strings.Contains(lines[0], "2.0 GB/s") || !strings.Contains(out.String(), " 0.30 s restore") {
		t.Errorf("the picture lacks its labels:\n%s", out.String())
	}
	draw(&out, nil, began, nil) // it draws nothing
}
