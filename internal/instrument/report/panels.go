package report

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"vrdma.dev/vrdma/internal/instrument/experiment"
)

// mostLines is how many lines a drawing with axes may have.
const mostLines = 6

// split makes panels: one for each tool if the experiment asks for it, and more where a drawing would have too many lines. All panels
// of a figure have the same axes.
func (f *Figure) split() {
	panels := []Figure{f.panel("", f.Lines, f.Cited)}
	if f.Experiment.Spec.Panels {
		panels = panels[0].by(toolOf)
	}
	if f.By != "" {
		for _, key := range []func(Curve) string{roleOf, toolOf, settingOf, waitOf} {
			var finer []Figure
			for _, p := range panels {
				if len(p.Lines)+len(p.Cited) > mostLines {
					finer = append(finer, p.by(key)...)
				} else {
					finer = append(finer, p)
				}
			}
			panels = finer
		}
		var finer []Figure
		for _, p := range panels {
			finer = append(finer, p.pieces()...)
		}
		panels = finer
	}
	if len(panels) > 1 || f.Experiment.Spec.Panels {
		f.Panels = panels
	}
}

// panel is a part of the figure.
func (f *Figure) panel(name string, lines, cited []Curve) Figure {
	whole := f.whole
	if whole == nil {
		whole = append(append([]Curve(nil), f.Lines...), f.Cited...)
	}
	return Figure{Experiment: f.Experiment, Metric: f.Metric, By: f.By, Apart: f.Apart, Lines: lines, Cited: cited, name: name, whole: whole}
}

// by divides a panel by a property of its lines. A published line without the property is in each part.
func (f *Figure) by(key func(Curve) string) (parts []Figure) {
	var keys []string
	for _, l := range f.Lines {
		if k := key(l); !slices.Contains(keys, k) {
			keys = append(keys, k)
		}
	}
	if len(keys) < 2 && (len(keys) == 0 || !f.Experiment.Spec.Panels || f.name != "") {
		return []Figure{*f}
	}
	for _, k := range keys {
		pick := func(list []Curve, all bool) (out []Curve) {
			for _, l := range list {
				if own := key(l); own == k || all && own == "" {
					l.Name = strings.TrimSuffix(strings.TrimPrefix(l.Name, k+", "), ": "+k)
					out = append(out, l)
				}
			}
			return out
		}
		name := k
		if f.name != "" && k != "" {
			name = f.name + ", " + k
		}
		parts = append(parts, f.panel(cmp.Or(name, f.name), pick(f.Lines, false), pick(f.Cited, !f.Experiment.Spec.Panels || f.name != "")))
	}
	return parts
}

// pieces divides a panel that still has too many lines. Each piece has lines of our own, and the published ones are distributed.
func (f *Figure) pieces() (parts []Figure) {
	total := len(f.Lines) + len(f.Cited)
	if total <= mostLines {
		return []Figure{*f}
	}
	own := slices.Collect(slices.Chunk(f.Lines, mostLines))
	if len(own) == 1 && len(f.Lines) < mostLines { // our lines are in each piece, beside some published ones
		cited := slices.Collect(slices.Chunk(f.Cited, mostLines-len(f.Lines)))
		for i, some := range cited {
			parts = append(parts, f.panel(strings.TrimPrefix(fmt.Sprintf("%s, %d of %d", f.name, i+1, len(cited)), ", "), f.Lines, some))
		}
		return parts
	}
	n := len(own)
	cited := slices.Collect(slices.Chunk(f.Cited, mostLines))
	for i, lines := range own {
		parts = append(parts, f.panel(strings.TrimPrefix(fmt.Sprintf("%s, %d of %d", f.name, i+1, n+len(cited)), ", "), lines, nil))
	}
	for i, some := range cited {
		parts = append(parts, f.panel(strings.TrimPrefix(fmt.Sprintf("%s, %d of %d, published", f.name, n+i+1, n+len(cited)), ", "), nil, some))
	}
	return parts
}

// The properties by which panels are divided.
func toolOf(l Curve) string { return l.Points[0].Cell.Tool }

func roleOf(l Curve) string { return l.Points[0].role }

func settingOf(l Curve) string {
	if l.Published {
		return ""
	}
	return where(l.Points[0].Cell)
}

func waitOf(l Curve) string {
	if l.Published {
		return ""
	}
	return l.Points[0].Cell.Waiting()
}

// Drawings returns how many drawings the figure has on the page.
func (f *Figure) Drawings() int {
	switch {
	case len(f.Panels) > 0:
		return len(f.Panels)
	case len(f.Lines) == 0 || f.constant() != "":
		return 0
	}
	return 1
}

// constant describes bars that would all be equal; "": they differ, or the figure has axes. A drawing of them shows nothing.
func (f *Figure) constant() string {
	if f.By != "" || len(f.Lines) < 2 || len(f.Cited) > 0 {
		return ""
	}
	first := f.Lines[0].Points[0].Summary
	for _, l := range f.Lines {
		if s := l.Points[0].Summary; s.Median != first.Median || s.Low != s.High || first.Low != first.High {
			return ""
		}
	}
	return "All have " + experiment.Quantity(first.Median, f.Metric) + "."
}

// shortNames are the names of lines without the parts that all share.
func shortNames(lines []Curve) []string {
	names := make([][]string, len(lines))
	count := make(map[string]int)
	for i, l := range lines {
		names[i] = strings.Split(strings.Replace(strings.TrimSuffix(l.Name, " (published)"), ": ", ", ", 1), ", ")
		seen := make(map[string]bool)
		for _, part := range names[i] {
			if !seen[part] {
				count[part]++
			}
			seen[part] = true
		}
	}
	var out []string
	for _, parts := range names {
		short := slices.DeleteFunc(slices.Clone(parts), func(part string) bool { return len(lines) > 1 && count[part] == len(lines) })
		if len(short) == 0 {
			short = parts[:1]
		}
		out = append(out, strings.Join(short, ", "))
	}
	return out
}
