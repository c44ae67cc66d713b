package speedtable

import (
	"encoding/json"
	"errors"
	"math"
	"math/rand/v2"
	"os"
	"slices"
	"strings"
	"testing"
	"testing/quick"
)

func rowOf(lower bool, values ...float64) *Row {
	return &Row{What: "w, against TCP", AtMost: lower, Ours: Series{Name: "tool", Unit: "s", Values: values}}
}

func TestCompare(t *testing.T) {
	tests := []struct {
		name             string
		lower            bool
		ours, ctl, other []float64
		loss, noise      float64
		want             Verdict
	}{
		{"equal", true, []float64{1, 2, 3}, []float64{3, 2, 1}, []float64{2}, 0, 0, Same},
		{"2 % slower is within the margin", true, []float64{102}, []float64{102}, []float64{100}, 0.02, 0, Same},
		{"5 % slower", true, []float64{105}, []float64{105}, []float64{100}, 0.05, 0, Worse},
		{"5 % slower, but 10 % from itself", true, []float64{110}, []float64{100}, []float64{105}, 110.0/105 - 1, 0.1, Same},
		{"5 % from itself, 20 % slower", true, []float64{120}, []float64{126}, []float64{100}, 0.2, 0.05, Worse},
		{"20 % faster", true, []float64{80}, []float64{80}, []float64{100}, -0.25, 0, Better},
		{"less bandwidth", false, []float64{80}, []float64{80}, []float64{100}, 0.25, 0, Worse},
		{"more bandwidth", false, []float64{125}, []float64{125}, []float64{100}, -0.25, 0, Better},
		{"medians, not averages", true, []float64{1, 1, 99}, []float64{1, 1, 1}, []float64{1}, 0, 0, Same},
		{"nothing before", true, []float64{5}, []float64{5}, []float64{0}, 1e6, 0, Worse},
		{"nothing now", true, []float64{0}, []float64{0}, []float64{5}, -1e6, 0, Better},
		{"the other has no such row", true, []float64{5}, []float64{5}, nil, 0, 0, Unknown},
		{"neither has it", true, nil, nil, nil, 0, 0, Unknown},
		{"what worked fails", true, nil, nil, []float64{5}, 0, 0, Broken},
		{"what worked fails now and then", true, []float64{5}, nil, []float64{5}, 0, 0, Broken},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			c := Compare(rowOf(test.lower, test.ours...), rowOf(test.lower, test.ctl...), rowOf(test.lower, test.other...))
			if c.Verdict != test.want || !nearly(c.Loss, test.loss) || !nearly(c.Noise, test.noise) {
				t.Errorf("got %s, loss %v, noise %v, want %s, %v, %v", c.Verdict, c.Loss, c.Noise, test.want, test.loss, test.noise)
			}
			if c.What != "w" {
				t.Errorf("the row is called %q, want %q", c.What, "w")
			}
			if _, err := json.Marshal(c); err != nil {
				t.Error(err)
			}
		})
	}
}

func nearly(a, b float64) bool { return math.Abs(a-b) < 1e-9 }

// Equal numbers are never worse, in any order. A build compared with itself is never worse than its control. If one build is worse,
// the other is better.
func TestCompareProperties(t *testing.T) {
	positive := func(values []float64) []float64 {
		out := []float64{1}
		for _, v := range values {
			if v = math.Abs(math.Mod(v, 1e9)); v > 1e-9 { // not NaN
				out = append(out, v)
			}
		}
		return out
	}
	equal := func(values []float64, lower bool) bool {
		a := positive(values)
		shuffled := slices.Clone(a)
		rand.Shuffle(len(shuffled), func(i, j int) { shuffled[i], shuffled[j] = shuffled[j], shuffled[i] })
		c := Compare(rowOf(lower, a...), rowOf(lower, a...), rowOf(lower, shuffled...))
		return c.Verdict == Same && c.Loss == 0 && c.Noise == 0
	}
	control := func(first, second []float64, lower bool) bool {
		a, again := positive(first), positive(second)
		return Compare(rowOf(lower, a...), rowOf(lower, again...), rowOf(lower, again...)).Verdict == Same
	}
	opposite := func(first, second []float64, lower bool) bool {
		a, b := rowOf(lower, positive(first)...), rowOf(lower, positive(second)...)
		forth, back := Compare(a, a, b).Verdict, Compare(b, b, a).Verdict
		return (forth == Worse) == (back == Better) && (forth == Better) == (back == Worse)
	}
	for name, property := range map[string]any{"equal": equal, "control": control, "opposite": opposite} {
		if err := quick.Check(property, &quick.Config{MaxCount: 15}); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// Differences below the resolution of the clock are ignored.
func TestCompareStep(t *testing.T) {
	ours, control, theirs := rowOf(true, 0.1), rowOf(true, 0.1), rowOf(true, 0)
	ours.Step = 0.1
	if c := Compare(ours, control, theirs); c.Verdict != Same {
		t.Errorf("one step: %s", c.Verdict)
	}
	theirs.Ours.Values[0] = 0.3
	if c := Compare(theirs, theirs, ours); c.Verdict != Worse {
		t.Errorf("two steps: %s", c.Verdict)
	}
}

// Numbers of two tools are not compared, and failures are noted.
func TestCompareNotes(t *testing.T) {
	ours, theirs := rowOf(true, 5), rowOf(true, 1)
	theirs.Ours.Name = "another tool"
	theirs.Note = "the first is not carried"
	ours.Ours.Failures = []string{"once"}
	c := Compare(ours, rowOf(true, 5), theirs)
	want := "this build: tool failed in 1 of 2 runs: once; other build: the first is not carried"
	if c.Verdict != Unknown || c.Note != want {
		t.Errorf("got %s, %q, want %s, %q", c.Verdict, c.Note, Unknown, want)
	}
}

func TestChance(t *testing.T) {
	steady, spread := []float64{100, 100, 101, 101, 100, 101}, []float64{50, 100, 150, 60, 140, 100}
	if got := chance(steady, 0.05); got != 0 {
		t.Errorf("numbers within 1 %% differ by 5 %% in %v of all deals", got)
	}
	if got := chance(spread, 0.05); got < 0.5 {
		t.Errorf("numbers between 50 and 150 differ by 5 %% in only %v of all deals", got)
	}
	if got := chance(spread, 0); got != 1 {
		t.Errorf("they differ by nothing or more in %v of all deals, want all", got)
	}
	if one, two := chance(spread, 0.3), chance(spread, 0.3); one != two {
		t.Errorf("the same numbers gave %v and %v", one, two)
	}
}

func TestComparedReport(t *testing.T) {
	c := Compared{Version: "new", Other: "old, protocol 2"}
	c.Add(Compare(rowOf(true, 1e-6, 3e-6), rowOf(true, 2e-6), rowOf(true, 1e-6)))
	c.Add(Compare(rowOf(true, 9), rowOf(true, 9), rowOf(true, 9))) // the same row, compared with something else
	dir := t.TempDir()
	base, err := c.Write(dir)
	if err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(base + ".md")
	want := "| w | 2.00 us (1.00 us to 3.00 us) | 2.00 us | 1.00 us | 100.0 % worse | 0.0 % | 67.8 % | WORSE |\n"
	if err != nil || !strings.HasSuffix(string(text), want) {
		t.Errorf("%v, got\n%s\nwant at its end\n%s", err, text, want)
	}
	text, err = os.ReadFile(base + ".json")
	var back Compared
	if err := errors.Join(err, json.Unmarshal(text, &back)); err != nil || len(back.Rows) != 1 || !slices.Equal(back.Worse(), []string{"w"}) {
		t.Errorf("%v, got %+v", err, back)
	}
}
