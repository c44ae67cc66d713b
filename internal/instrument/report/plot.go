package report

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"strings"

	"vrdma.dev/vrdma/internal/instrument/experiment"
)

// The size of a drawing and the position of its axes. It is narrow enough for a phone.
const (
	plotWidth, plotHeight = 600, 340
	plotLeft, plotRight   = 84, 150 // on the right are the names of lines
	plotTop, plotBottom   = 16, 48
	lineTop               = 36 // below the name of the axis
	barHeight, barRow     = 14, 38
	barLeft, barValue     = 4, 96
	markerSize            = 4.0
	logarithmic           = 20 // ratio of values above which an axis is logarithmic
	mostTicks             = 12
	tickRoom              = 58 // for a label of the x axis
	innerWidth            = plotWidth - plotLeft - plotRight
	lineStyleCount        = 7
	labelHeight           = 13  // of a name beside its line
	longestLabel          = 22  // its most characters
	nearLimit             = 1.7 // a limit further above the highest value is not drawn
)

// A scale maps values to an axis.
type scale struct {
	low, high float64
	log       bool
	from, to  float64 // pixels
}

func (s scale) at(v float64) float64 {
	low, high := s.low, s.high
	if s.log { // a logarithmic axis has no 0: it is drawn at the end
		v, low, high = math.Log(max(v, low)), math.Log(low), math.Log(high)
	}
	return s.from + (v-low)/(high-low)*(s.to-s.from)
}

// newScale covers values from 0, or in powers of ten of the printed unit if their range is large.
func newScale(metric string, values []float64, from, to float64, linear bool) scale {
	unit := 1.0
	if metric == experiment.Bandwidth {
		unit = 8 // printed in bits
	}
	low, high := math.Inf(1), 0.0
	for _, v := range values {
		if v > 0 {
			low, high = min(low, v), max(high, v)
		}
	}
	if high == 0 {
		return scale{0, 1, false, from, to}
	}
	if high/low > logarithmic && !linear {
		return scale{math.Pow(10, math.Floor(math.Log10(low*unit))) / unit, math.Pow(10, math.Ceil(math.Log10(high*unit))) / unit, true, from, to}
	}
	return scale{0, high * 1.08, false, from, to}
}

// ticks returns the values of the axis marks.
func (s scale) ticks() (list []float64) {
	if s.log {
		for v := s.low; v <= s.high*1.001; v *= 10 {
			list = append(list, v)
		}
		return list
	}
	step := math.Pow(10, math.Floor(math.Log10(s.high)))
	for s.high/step < 4 {
		step /= 2
	}
	for v := 0.0; v <= s.high && len(list) < mostTicks; v += step {
		list = append(list, v)
	}
	return list
}

// The views hold what template "plot" prints: coordinates as text, of pixels.
type (
	plotView struct {
		Width, Height int
		Label         string
		Axes          *axesView
		Limit         *limitView
		Lines         []lineView
		Direct        []labelView
		Bars          []barView
		Base          *baseView // of ratios, at 1
	}
	labelView struct{ X, Y, Text string }
	baseView  struct {
		X           string
		Top, Bottom int
		TextY       int
		Text        string
		Anchor      string
	}
	axesView struct {
		Y              []yTickView
		X              []xTickView
		Name           string
		NameX, NameY   int
		Along          string
		AlongX, AlongY int
		Left, Right    int
		Bottom         int
	}
	yTickView struct {
		Left, Right, X int
		At, Y, Text    string
	}
	xTickView struct {
		At   string
		Y    int
		Text string
	}
	limitView struct {
		Left, Right, X int
		At, Y, Text    string
	}
	lineView struct {
		Class, Points string
		Marks         []pointView
	}
	pointView struct {
		X, Y     string
		Interval *intervalView
		Mark     markView
		Odd      bool
		Tip      string
	}
	// intervalView is a vertical line at X, or a horizontal one at Y.
	intervalView struct{ X, Y, Low, High string }
	// markView is a path, a square with a side, or a circle.
	markView struct{ Path, X, Y, Side, Radius string }
	barView  struct {
		Class, Name                 string
		Left, Top, BarTop           int
		Width                       string
		Height                      int
		Interval                    *intervalView
		Dot                         *markView // in place of a bar where the axis does not begin at 0
		ValueX                      string
		ValueY                      int
		Value                       string
		HitTop, HitWidth, HitHeight int
		Tip                         string
	}
)

// pixels is a coordinate.
func pixels(v float64) string { return fmt.Sprintf("%.1f", v) }

// newPlot draws a figure: lines if it has an x axis, else bars.
func newPlot(f Figure) *plotView {
	if f.By == "" {
		return newBars(f)
	}
	lines := append(append([]Curve(nil), f.Lines...), f.Cited...)
	var xs, ys []float64
	for _, l := range append(f.whole, lines...) {
		for _, p := range l.Points {
			xs, ys = append(xs, along(f, p)), append(ys, p.Summary.Low, p.Summary.High)
		}
	}
	x := scale{log: f.By == "size", from: plotLeft, to: plotWidth - plotRight, low: math.Inf(1)}
	for _, v := range xs {
		x.low, x.high = min(x.low, v), max(x.high, v)
	}
	if len(xs) == 0 || x.low == x.high {
		x.low, x.high = x.low/2, x.high*2
	}
	limit, of := f.limit()
	if drawnLimit(limit, ys) {
		ys = append(ys, limit)
	}
	y := newScale(f.Metric, ys, plotHeight-plotBottom, lineTop, false)
	plot := &plotView{Width: plotWidth, Height: plotHeight, Label: f.Experiment.Spec.Title, Axes: newAxes(f, x, y)}
	if drawnLimit(limit, ys) {
		at := y.at(limit) // its text is on the left, where lines are low
		plot.Limit = &limitView{Left: plotLeft, Right: plotWidth - plotRight, X: plotLeft + 6, At: pixels(at), Y: pixels(at - 5), Text: shortLimit(of)}
	}
	styles := lineStyles(lines)
	for i, l := range lines {
		plot.Lines = append(plot.Lines, newLine(f, styles[i], l, x, y))
	}
	plot.Direct = directLabels(f, lines, x, y)
	return plot
}

// directLabels are the names of lines at their right ends, without what all lines share. Names that would overlap are moved apart.
func directLabels(f Figure, lines []Curve, x, y scale) (list []labelView) {
	type label struct {
		text  string
		x, at float64
	}
	var labels []label
	for i, name := range shortNames(lines) {
		if r := []rune(name); len(r) > longestLabel {
			name = string(r[:longestLabel-1]) + "…"
		}
		last := lines[i].Points[len(lines[i].Points)-1]
		labels = append(labels, label{name, x.at(along(f, last)), y.at(last.Summary.Median)})
	}
	slices.SortStableFunc(labels, func(a, b label) int { return cmp.Compare(a.at, b.at) })
	for i := range labels {
		if i > 0 {
			labels[i].at = max(labels[i].at, labels[i-1].at+labelHeight)
		}
	}
	bottom := float64(plotHeight - plotBottom)
	for i := len(labels) - 1; i >= 0; i-- { // what was pushed below the axis
		labels[i].at = min(labels[i].at, bottom)
		bottom = labels[i].at - labelHeight
	}
	for _, l := range labels {
		list = append(list, labelView{pixels(max(l.x, plotWidth-plotRight) + 10), pixels(l.at + 4), l.text})
	}
	return list
}

// limit returns the limit of a figure, if all points have the same.
func (f *Figure) limit() (limit float64, of string) {
	if f.Metric != experiment.Bandwidth {
		return 0, ""
	}
	for _, l := range f.Lines {
		for _, p := range l.Points {
			if of != "" && p.LimitOf != of {
				return 0, ""
			}
			limit, of = max(limit, p.Limit), p.LimitOf
		}
	}
	return limit, of
}

// drawnLimit reports whether a limit is near enough to the values to be drawn.
func drawnLimit(limit float64, values []float64) bool {
	high := 0.0
	for _, v := range values {
		high = max(high, v)
	}
	return limit > 0 && limit <= high*nearLimit
}

// shortLimit is the text at a limit's line.
func shortLimit(of string) string {
	text, _, _ := strings.Cut(of, ",")
	return "limit: " + text
}

// along returns the position of a point on the x axis.
func along(f Figure, p Point) float64 {
	if f.By == "pairs" {
		return float64(p.Cell.Pairs)
	}
	return float64(p.Cell.Size)
}

// newAxes draws both axes and the grid.
func newAxes(f Figure, x, y scale) *axesView {
	a := &axesView{Left: plotLeft, Right: plotWidth - plotRight, Bottom: plotHeight - plotBottom, NameX: plotLeft - 8, NameY: lineTop - 16,
		Along: "size of a message", AlongX: plotLeft + innerWidth/2, AlongY: plotHeight - 8}
	for _, v := range y.ticks() {
		at := y.at(v)
		a.Y = append(a.Y, yTickView{Left: a.Left, Right: a.Right, X: plotLeft - 8, At: pixels(at), Y: pixels(at + 4), Text: experiment.Quantity(v, f.Metric)})
	}
	seen := make(map[float64]bool)
	last := math.Inf(-1)
	for v := x.low; v <= x.high*1.001; v = next(f, v) {
		at := x.at(v)
		if seen[v] || at-last < tickRoom {
			continue
		}
		seen[v], last = true, at
		text := fmt.Sprint(v)
		if f.By == "size" {
			text = experiment.Size(v).String()
		}
		a.X = append(a.X, xTickView{At: pixels(at), Y: plotHeight - plotBottom + 18, Text: text})
	}
	a.Name = map[string]string{experiment.Rate: "messages a second", experiment.CPU: "processors"}[f.Metric]
	if a.Name = cmp.Or(a.Name, f.Metric); y.log {
		a.Name += ", logarithmic"
	}
	if f.By == "pairs" {
		a.Along = "pairs of programs"
	}
	return a
}

// next returns the tick after v.
func next(f Figure, v float64) float64 {
	if f.By == "size" {
		return v * 2
	}
	return v + 1
}

// newLine draws a line, a mark at each point, and the point's interval.
func newLine(f Figure, s lineStyle, l Curve, x, y scale) lineView {
	v := lineView{Class: s.class(l)}
	var points strings.Builder
	for _, p := range l.Points {
		px, py := x.at(along(f, p)), y.at(p.Summary.Median)
		fmt.Fprintf(&points, "%.1f,%.1f ", px, py)
		m := pointView{X: pixels(px), Y: pixels(py), Mark: mark(s.shape, px, py, l.Published), Odd: p.oddity(f.Metric) != "", Tip: tip(f, l, p)}
		if p.Summary.High > p.Summary.Low {
			m.Interval = &intervalView{X: m.X, Low: pixels(y.at(p.Summary.Low)), High: pixels(y.at(p.Summary.High))}
		}
		v.Marks = append(v.Marks, m)
	}
	v.Points = points.String()
	return v
}

// A lineStyle tells a line from others: by its colour, and without colours by its dashes and marks.
type lineStyle struct{ colour, dash, shape int }

// transportColours are the colours of transports: a colour means the same transport in every figure.
var transportColours = map[string]int{
	experiment.Verbs: 0, experiment.TCP: 1, experiment.Sockets: 2, experiment.Kernel: 3, experiment.Overlay: 4, experiment.Vhost: 5, experiment.OVS: 6,
}

// lineStyles returns the style of each line. The lines of a drawing differ in dashes and marks, so that they differ in print. Published lines
// are grey.
func lineStyles(lines []Curve) []lineStyle {
	styles := make([]lineStyle, len(lines))
	for i, l := range lines {
		colour := -1
		if !l.Published && len(l.Points) > 0 {
			colour = transportColours[l.Points[0].Cell.Transport]
		}
		styles[i] = lineStyle{colour, i % lineStyleCount, (i + i/lineStyleCount) % lineStyleCount}
	}
	return styles
}

// class is the CSS class of a line.
func (s lineStyle) class(l Curve) string {
	if l.Published {
		return fmt.Sprintf("cited d%d", s.dash)
	}
	return fmt.Sprintf("c%d d%d", s.colour, s.dash)
}

// mark is a shape that tells lines apart without colours.
func mark(i int, x, y float64, small bool) markView {
	const r = markerSize
	circle := markView{X: pixels(x), Y: pixels(y), Radius: pixels(r)}
	if small {
		circle.Radius = "1.5"
		return circle
	}
	line := func(points ...float64) markView { // a closed path around x, y
		var b strings.Builder
		for i := 0; i < len(points); i += 2 {
			fmt.Fprintf(&b, "%c%.1f %.1f", "ML"[min(i, 1)], x+r*points[i], y+r*points[i+1])
		}
		return markView{Path: b.String() + "Z"}
	}
	switch i % lineStyleCount {
	case 1:
		return markView{X: pixels(x - r + 0.5), Y: pixels(y - r + 0.5), Side: pixels(2*r - 1)}
	case 2:
		return line(0, -1, 1, 1, -1, 1) // a triangle
	case 3:
		return line(0, -1.2, 1.2, 0, 0, 1.2, -1.2, 0) // a diamond
	case 4:
		return line(0, 1, 1, -1, -1, -1) // a triangle on its top
	case 5:
		return line(-0.4, -1.2, 0.4, -1.2, 0.4, -0.4, 1.2, -0.4, 1.2, 0.4, 0.4, 0.4, 0.4, 1.2, -0.4, 1.2, -0.4, 0.4, -1.2, 0.4, -1.2, -0.4, -0.4, -0.4) // a plus
	case 6:
		return line(-1.2, -0.5, 1.2, -0.5, 1.2, 0.5, -1.2, 0.5) // a flat bar
	}
	return circle
}

// tip is the tooltip of a point.
func tip(f Figure, l Curve, p Point) string {
	text := l.Name
	if p.Cell.Size != 0 {
		text += ", " + p.Cell.Size.String()
	}
	if p.Cell.Pairs > 1 {
		text += fmt.Sprintf(", %d pairs", p.Cell.Pairs)
	}
	text += ": " + experiment.Quantity(p.Summary.Median, f.Metric)
	switch {
	case l.Published:
		text += publishedSpread(p, f.Metric)
	case p.Summary.N > 1:
		text += fmt.Sprintf(" (%s, %d rounds)", interval(p.Summary, f.Metric), p.Summary.N)
	default:
		text += " (single run)"
	}
	if odd := p.oddity(f.Metric); odd != "" {
		text += "; odd: " + odd
	}
	return text
}

// newBars draws a bar for each line, which has one point, and for published ones. Where values differ by more than 20 times, dots on a
// logarithmic axis take the place of bars; ratios are dots around 1.
func newBars(f Figure) *plotView {
	var values []float64
	lines := append(append([]Curve(nil), f.Lines...), f.Cited...)
	for _, l := range lines {
		values = append(values, l.Points[0].Summary.Low, l.Points[0].Summary.High, l.Points[0].Summary.Median)
	}
	if f.Metric == ratio {
		values = append(values, 1)
	}
	x := newScale(f.Metric, values, barLeft+markerSize, plotWidth-barValue, false)
	if f.Metric == ratio {
		x = scale{low: min(slices.Min(values), 0.9), high: max(slices.Max(values), 1.1), from: barLeft + markerSize, to: plotWidth - barValue}
	}
	dots := x.log || f.Metric == ratio
	plot := &plotView{Width: plotWidth, Height: plotTop + len(lines)*barRow, Label: f.Experiment.Spec.Title}
	if dots {
		plot.Height += labelHeight
		at, text := x.low, "logarithmic, from "+experiment.Quantity(x.low, f.Metric)
		if f.Metric == ratio {
			at, text = 1, "1: equal"
		}
		plot.Base = &baseView{X: pixels(x.at(at)), Top: plotTop, Bottom: plot.Height - labelHeight, TextY: plot.Height - 3, Text: text, Anchor: "middle"}
		if x.log {
			plot.Base.Anchor = "start"
		}
	}
	for i, l := range lines {
		p := l.Points[0]
		top := plotTop + i*barRow
		end := x.at(p.Summary.Median)
		bar := barView{
			Class: fmt.Sprintf("c%d", transportColours[p.Cell.Transport]), Name: l.Name, Left: barLeft, Top: top, BarTop: top + 5,
			Width: pixels(max(end-barLeft, 1)), Height: barHeight,
			ValueX: pixels(max(end, x.at(p.Summary.High)) + 8), ValueY: top + barHeight + 3, Value: experiment.Quantity(p.Summary.Median, f.Metric),
			HitTop: top - 10, HitWidth: plotWidth, HitHeight: barRow - 4, Tip: tip(f, l, p),
		}
		if dots {
			m := mark(0, end, float64(bar.BarTop+barHeight/2), false)
			bar.Dot = &m
		}
		if l.Published {
			bar.Class = "cited"
		}
		if p.Summary.High > p.Summary.Low {
			bar.Interval = &intervalView{Y: fmt.Sprint(bar.BarTop + barHeight/2), Low: pixels(x.at(p.Summary.Low)), High: pixels(x.at(p.Summary.High))}
		}
		plot.Bars = append(plot.Bars, bar)
	}
	return plot
}
