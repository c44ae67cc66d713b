package report

import (
	"cmp"
	"fmt"
	"html"
	"math"
	"strings"

	"vrdma.dev/vrdma/internal/instrument/experiment"
)

// The size of a drawing, and where its axes are. It is narrow, so that its text can be read on a telephone.
const (
	plotWidth, plotHeight = 600, 340
	plotLeft, plotRight   = 84, 32
	plotTop, plotBottom   = 16, 48
	lineTop               = 36 // of lines, below what the axis is called
	barHeight, barRow     = 14, 38
	barLeft, barValue     = 4, 96
	markerSize            = 4.0
	logarithmic           = 20 // a range of values above which an axis is
	mostTicks             = 12
	tickRoom              = 58 // for a label at the x axis
	innerWidth            = plotWidth - plotLeft - plotRight
	colours               = 8 // of the style sheet
	dashes                = 4
	nearLimit             = 1.7 // a limit that is further above the highest value is only told of
)

// A scale puts values on an axis.
type scale struct {
	low, high float64
	log       bool
	from, to  float64 // pixels
}

func (s scale) at(v float64) float64 {
	low, high := s.low, s.high
	if s.log { // which has no 0: that is at its end
		v, low, high = math.Log(max(v, low)), math.Log(low), math.Log(high)
	}
	return s.from + (v-low)/(high-low)*(s.to-s.from)
}

// newScale covers values: from 0, or by powers of ten of what is written at the axis if they are far
// apart.
func newScale(metric string, values []float64, from, to float64, linear bool) scale {
	unit := 1.0
	if metric == experiment.Bandwidth {
		unit = 8 // bits are written
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

// ticks are where an axis has marks.
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

// svg draws a figure: lines if there is something to go along, else bars.
func svg(f Figure) string {
	if f.By == "" {
		return bars(f)
	}
	var b strings.Builder
	lines := append(append([]Line(nil), f.Lines...), f.Cited...)
	var xs, ys []float64
	for _, l := range lines {
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
	// The publication with panels has axes from 0.
	y := newScale(f.Metric, ys, plotHeight-plotBottom, lineTop, f.Experiment.Spec.Panels)
	fmt.Fprintf(&b, `<svg class="plot" viewBox="0 0 %d %d" role="img" aria-label="%s">`, plotWidth, plotHeight, html.EscapeString(f.Experiment.Spec.Title))
	axes(&b, f, x, y)
	if drawnLimit(limit, ys) {
		at := y.at(limit)
		fmt.Fprintf(&b, `<line class="limit" x1="%d" x2="%d" y1="%.1f" y2="%.1f"/><text class="tick" x="%d" y="%.1f">%s</text>`, // on the left, where lines are low
			plotLeft, plotWidth-plotRight, at, at, plotLeft+6, at-5, html.EscapeString(shortLimit(of)))
	}
	for i, l := range lines {
		drawLine(&b, f, i, l, x, y)
	}
	b.WriteString("</svg>")
	return b.String()
}

// limit is the yardstick of a figure, if that is one for all.
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

// shortLimit is what is written at a limit's line.
func shortLimit(of string) string {
	text, _, _ := strings.Cut(of, ",")
	return "limit: " + text
}

// along is where a point is on the x axis.
func along(f Figure, p Point) float64 {
	if f.By == "pairs" {
		return float64(p.Cell.Pairs)
	}
	return float64(p.Cell.Size)
}

// axes draws them, with a grid.
func axes(b *strings.Builder, f Figure, x, y scale) {
	for _, v := range y.ticks() {
		at := y.at(v)
		fmt.Fprintf(b, `<line class="grid" x1="%d" x2="%d" y1="%.1f" y2="%.1f"/>`, plotLeft, plotWidth-plotRight, at, at)
		fmt.Fprintf(b, `<text class="tick" x="%d" y="%.1f" text-anchor="end">%s</text>`, plotLeft-8, at+4, html.EscapeString(experiment.Quantity(v, f.Metric)))
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
		fmt.Fprintf(b, `<text class="tick" x="%.1f" y="%d" text-anchor="middle">%s</text>`, at, plotHeight-plotBottom+18, text)
	}
	what := map[string]string{experiment.Rate: "messages a second", experiment.CPU: "processors"}[f.Metric]
	if what = cmp.Or(what, f.Metric); y.log {
		what += ", logarithmic"
	}
	fmt.Fprintf(b, `<text class="axis" x="%d" y="%d">%s</text>`, plotLeft-8, lineTop-16, what)
	label := "size of a message"
	if f.By == "pairs" {
		label = "pairs of programs"
	}
	fmt.Fprintf(b, `<text class="axis" x="%d" y="%d" text-anchor="middle">%s</text>`, plotLeft+innerWidth/2, plotHeight-8, label)
	fmt.Fprintf(b, `<line class="frame" x1="%d" x2="%d" y1="%d" y2="%d"/>`, plotLeft, plotWidth-plotRight, plotHeight-plotBottom, plotHeight-plotBottom)
}

// next is the tick after v.
func next(f Figure, v float64) float64 {
	if f.By == "size" {
		return v * 2
	}
	return v + 1
}

// drawLine draws a line, a mark at each point, and its interval.
func drawLine(b *strings.Builder, f Figure, i int, l Line, x, y scale) {
	fmt.Fprintf(b, `<g class="line %s" data-line="%d"><polyline points="`, lineClass(i, l), i)
	for _, p := range l.Points {
		fmt.Fprintf(b, "%.1f,%.1f ", x.at(along(f, p)), y.at(p.Summary.Median))
	}
	b.WriteString(`"/>`)
	for _, p := range l.Points {
		px, py := x.at(along(f, p)), y.at(p.Summary.Median)
		if p.Summary.High > p.Summary.Low {
			fmt.Fprintf(b, `<line class="interval" x1="%.1f" x2="%.1f" y1="%.1f" y2="%.1f"/>`, px, px, y.at(p.Summary.Low), y.at(p.Summary.High))
		}
		b.WriteString(mark(i, px, py, l.Published))
		if p.oddity(f.Metric) != "" {
			fmt.Fprintf(b, `<circle class="odd" cx="%.1f" cy="%.1f" r="8"/>`, px, py)
		}
		fmt.Fprintf(b, `<circle class="hit" cx="%.1f" cy="%.1f" r="9"><title>%s</title></circle>`, px, py, html.EscapeString(tip(f, l, p)))
	}
	b.WriteString("</g>")
}

// lineClass is how the style sheet knows a line. Published ones are grey, and differ by their dashes.
func lineClass(i int, l Line) string {
	if l.Published {
		return fmt.Sprintf("cited d%d", 1+i%(dashes-1))
	}
	return fmt.Sprintf("c%d d%d", i%colours, i/colours%dashes)
}

// mark is a shape that tells lines apart without colours.
func mark(i int, x, y float64, small bool) string {
	const r = markerSize
	if small {
		return fmt.Sprintf(`<circle class="mark" cx="%.1f" cy="%.1f" r="1.5"/>`, x, y)
	}
	switch i % 4 {
	case 1:
		return fmt.Sprintf(`<rect class="mark" x="%.1f" y="%.1f" width="%.1f" height="%.1f"/>`, x-r+0.5, y-r+0.5, 2*r-1, 2*r-1)
	case 2:
		return fmt.Sprintf(`<path class="mark" d="M%.1f %.1fL%.1f %.1fL%.1f %.1fZ"/>`, x, y-r, x+r, y+r, x-r, y+r)
	case 3:
		return fmt.Sprintf(`<path class="mark" d="M%.1f %.1fL%.1f %.1fL%.1f %.1fL%.1f %.1fZ"/>`, x, y-r, x+r, y, x, y+r, x-r, y)
	}
	return fmt.Sprintf(`<circle class="mark" cx="%.1f" cy="%.1f" r="%.1f"/>`, x, y, r)
}

// tip is what a point says when it is pointed at.
func tip(f Figure, l Line, p Point) string {
	text := l.Name
	if p.Cell.Size != 0 {
		text += ", " + p.Cell.Size.String()
	}
	if p.Cell.Pairs > 1 {
		text += fmt.Sprintf(", %d pairs", p.Cell.Pairs)
	}
	text += ": " + experiment.Quantity(p.Summary.Median, f.Metric)
	if p.Summary.N > 1 {
		text += fmt.Sprintf(" (%s to %s, %d rounds)", experiment.Quantity(p.Summary.Low, f.Metric), experiment.Quantity(p.Summary.High, f.Metric), p.Summary.N)
	}
	if odd := p.oddity(f.Metric); odd != "" {
		text += "; odd: " + odd
	}
	return text
}

// bars draws a bar for each line that has one point, and for published ones.
func bars(f Figure) string {
	var b strings.Builder
	var values []float64
	lines := append(append([]Line(nil), f.Lines...), f.Cited...)
	for _, l := range lines {
		values = append(values, l.Points[0].Summary.High, l.Points[0].Summary.Median)
	}
	height := plotTop + len(lines)*barRow
	x := newScale(f.Metric, values, barLeft, plotWidth-barValue, true)
	fmt.Fprintf(&b, `<svg class="plot" viewBox="0 0 %d %d" role="img" aria-label="%s">`, plotWidth, height, html.EscapeString(f.Experiment.Spec.Title))
	for i, l := range lines {
		p := l.Points[0]
		top := plotTop + i*barRow
		end := x.at(p.Summary.Median)
		class := fmt.Sprintf("c%d", barColour(p))
		if l.Published {
			class = "cited"
		}
		fmt.Fprintf(&b, `<g class="line %s" data-line="%d"><text class="name" x="%d" y="%d">%s</text>`, class, i, barLeft, top, html.EscapeString(l.Name))
		fmt.Fprintf(&b, `<rect class="bar" x="%d" y="%d" width="%.1f" height="%d" rx="2"/>`, barLeft, top+5, max(end-barLeft, 1), barHeight)
		if p.Summary.High > p.Summary.Low {
			fmt.Fprintf(&b, `<line class="interval" x1="%.1f" x2="%.1f" y1="%d" y2="%d"/>`, x.at(p.Summary.Low), x.at(p.Summary.High), top+5+barHeight/2, top+5+barHeight/2)
		}
		fmt.Fprintf(&b, `<text class="value" x="%.1f" y="%d">%s</text>`, max(end, x.at(p.Summary.High))+8, top+barHeight+3, html.EscapeString(experiment.Quantity(p.Summary.Median, f.Metric)))
		fmt.Fprintf(&b, `<rect class="hit" x="0" y="%d" width="%d" height="%d"><title>%s</title></rect></g>`, top-10, plotWidth, barRow-4, html.EscapeString(tip(f, l, p)))
	}
	b.WriteString("</svg>")
	return b.String()
}

// barColour tells transports apart.
func barColour(p Point) int {
	switch p.Cell.Transport {
	case experiment.TCP:
		return 1
	case experiment.Verbs:
		return 0
	}
	return 2
}
