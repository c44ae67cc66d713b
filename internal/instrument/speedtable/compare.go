package speedtable

import (
	"fmt"
	"io"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"time"
)

// margin is how much worse a median may be before a row counts as worse.
const margin = 0.03

// Sides names the builds of a comparison: this build, this build again as the control, and the other build.
var Sides = [...]string{"this build", "control", "other build"}

// A Verdict is the result of comparing a row.
type Verdict string

// The verdicts.
const (
	Same   Verdict = "same"
	Better Verdict = "better"
	Worse  Verdict = "WORSE"
	// Broken means that only the other build measures the row.
	Broken Verdict = "FAILED"
	// Unknown means that the other build does not measure the row, or neither does.
	Unknown Verdict = "not compared"
)

// A ComparedRow is a row of the speed table of two builds.
type ComparedRow struct {
	What          string  `json:"what"`
	LowerIsBetter bool    `json:"lower_is_better"`
	Ours          Series  `json:"ours"`
	Control       Series  `json:"control"` // this build again
	Theirs        Series  `json:"theirs"`
	Loss          float64 `json:"loss"`  // how much worse this build's median is: 0.05 is 5 %; negative: the other is worse
	Noise         float64 `json:"noise"` // the difference between this build and the control
	// Chance is how often two random halves of this build's own numbers differ as much as the builds do. If it is large, measure
	// again with more rounds.
	Chance  float64 `json:"chance"`
	Verdict Verdict `json:"verdict"`
	Note    string  `json:"note,omitempty"`
}

// Compare judges a row of three sides. This build is worse if its median is worse than the other's by more than the margin, and by
// more than it differs from the control.
func Compare(ours, control, theirs *Row) ComparedRow {
	c := ComparedRow{
		What: Subject(ours.What), LowerIsBetter: ours.AtMost,
		Ours: ours.Ours, Control: control.Ours, Theirs: theirs.Ours,
	}
	for i, row := range []*Row{ours, control, theirs} {
		row.mention(&row.Ours)
		for _, text := range []string{row.Missing, row.Note} {
			if text != "" {
				c.Note = strings.TrimPrefix(c.Note+"; "+Sides[i]+": "+text, "; ")
			}
		}
	}
	measured := func(s *Series) bool { return len(s.Values) > 0 }
	switch {
	case !measured(&c.Theirs) || c.Ours.Name != c.Theirs.Name && measured(&c.Ours):
		c.Verdict = Unknown
		return c
	case !measured(&c.Ours) || !measured(&c.Control):
		c.Verdict = Broken
		return c
	}
	a, again, b := c.Ours.Median(), c.Control.Median(), c.Theirs.Median()
	c.Loss = loss(a, b, c.LowerIsBetter)
	c.Noise = math.Abs(loss(a, again, true))
	c.Chance = chance(slices.Concat(c.Ours.Values, c.Control.Values), math.Abs(c.Loss))
	bar := max(margin, c.Noise)
	const rounding = 1.001
	switch {
	case math.Abs(a-b) <= ours.Step*rounding:
		c.Verdict = Same
	case c.Loss > bar:
		c.Verdict = Worse
	case c.Loss < -bar:
		c.Verdict = Better
	default:
		c.Verdict = Same
	}
	return c
}

// loss is how much worse a is than b, as a share: 0.5 if a takes half as long again, or if b is half as much again. If a is better,
// loss is negative. JSON has no infinity, so loss is limited.
func loss(a, b float64, lowerIsBetter bool) float64 {
	const most = 1e6
	if !lowerIsBetter {
		a, b = b, a
	}
	switch {
	case a == b:
		return 0
	case a < b:
		return -loss(b, a, true)
	case b == 0:
		return most
	}
	return min(a/b-1, most)
}

// chance splits values into random halves many times. It returns the share of splits in which the medians of the halves differ by at
// least difference.
func chance(values []float64, difference float64) float64 {
	const deals = 1000
	random := rand.New(rand.NewPCG(1, 2)) // a fixed seed: equal numbers give equal results
	dealt := slices.Clone(values)
	hits := 0
	for range deals {
		random.Shuffle(len(dealt), func(i, j int) { dealt[i], dealt[j] = dealt[j], dealt[i] })
		one, other := Series{Values: dealt[:len(dealt)/2]}, Series{Values: dealt[len(dealt)/2:]}
		a, b := one.Median(), other.Median()
		if math.Abs(loss(a, b, true)) >= difference {
			hits++
		}
	}
	return float64(hits) / deals
}

// Subject is what a row measures, without what the speed table compares it with.
func Subject(what string) string {
	before, _, _ := strings.Cut(what, ", against ")
	return before
}

// Compared is the result of a comparison.
type Compared struct {
	Time    time.Time     `json:"time"`
	Version string        `json:"version"`
	Other   string        `json:"other"` // the version that it prints
	Machine Machine       `json:"machine"`
	Rows    []ComparedRow `json:"rows"`
}

// Add appends a row, unless an earlier row has the same subject: the speed table compares some series with several others.
func (c *Compared) Add(row ComparedRow) {
	for _, earlier := range c.Rows {
		if earlier.What == row.What {
			return
		}
	}
	c.Rows = append(c.Rows, row)
}

// Worse returns the rows that got worse or fail.
func (c *Compared) Worse() []string {
	var worse []string
	for _, row := range c.Rows {
		if row.Verdict == Worse || row.Verdict == Broken {
			worse = append(worse, row.What)
		}
	}
	return worse
}

// Markdown writes the comparison for people.
func (c *Compared) Markdown(w io.Writer) error {
	var b strings.Builder
	fmt.Fprintf(&b, "vrdma %s against %s, %s, %s\n\n", c.Version, c.Other, c.Machine, c.Time.UTC().Format("2006-01-02 15:04 UTC"))
	b.WriteString("| what | this build: median (least to most) | again, the control | the other build | this against the other | against itself | by chance | |\n" +
		"|---|---|---|---|---|---|---|---|\n")
	for i := range c.Rows {
		r := &c.Rows[i]
		fmt.Fprintf(&b, "| %s | %s | %s | %s | %s | %s | %s | %s |\n", r.What, values(&r.Ours), values(&r.Control), values(&r.Theirs), r.change(), r.share(r.Noise), r.share(r.Chance), r.Verdict)
	}
	for _, r := range c.Rows {
		if r.Note != "" {
			fmt.Fprintf(&b, "\n%s: %s\n", r.What, r.Note)
		}
	}
	_, err := io.WriteString(w, b.String())
	return err
}

// change describes the loss.
func (r *ComparedRow) change() string {
	switch {
	case r.Verdict == Broken || r.Verdict == Unknown:
		return ""
	case r.Loss > 0:
		return percent(r.Loss) + " worse"
	case r.Loss < 0:
		return percent(-r.Loss) + " better"
	}
	return "equal"
}

func (r *ComparedRow) share(v float64) string {
	if r.Verdict == Broken || r.Verdict == Unknown {
		return ""
	}
	return percent(v)
}

func percent(share float64) string { return fmt.Sprintf("%.1f %%", 100*share) }

// values is a series in one cell, without its name.
func values(s *Series) string {
	if len(s.Values) == 0 {
		return ""
	}
	return s.summary(false)
}

// JSON writes the comparison for programs.
func (c *Compared) JSON(w io.Writer) error { return WriteJSON(w, c) }

// Write writes the comparison to dir as JSON and Markdown, named by the time.
func (c *Compared) Write(dir string) (path string, err error) {
	return WriteFiles(dir, c.Time.UTC().Format("20060102-150405")+"-against", c)
}
