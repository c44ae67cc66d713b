package report

import (
	_ "embed"
	"encoding/base64"
	"fmt"
	"html/template"
	"io"
	"slices"
	"strings"

	"vrdma.dev/vrdma/internal/instrument/experiment"
)

//go:embed style.css
var style string

//go:embed page.js
var script string

//go:embed page.tmpl
var pageText string

// pageTemplate has the whole page as template "page". Its parts are templates, too: "figure", "plot", "values" and others.
var pageTemplate = template.Must(template.New("").Parse(pageText))

// The views hold what the templates of page.tmpl print.
type (
	pageView struct {
		Style    template.CSS
		Script   template.JS
		Source   string // of the first screen, as Findings and Chosen
		Findings []string
		Chosen   *figureView
		Summary  []passageView
		Contents []suiteView
		Figures  []figureView
		Repeated tableView
	}
	passageView struct {
		Title string
		List  listView
	}
	listView struct {
		Class     string
		Sentences []string
	}
	// sentencesView has the first sentences; More are folded.
	sentencesView struct {
		First listView
		More  *listView
	}
	figureView struct {
		Number     int
		Suite      *suiteView // before the first figure of a suite
		Title, Why string
		Panels     []panelView
		Plot       *plotView
		Legend     []legendView
		Caption    string
		Constant   string // in place of a drawing
		Sentences  sentencesView
		Remarks    sentencesView
		Table      *valuesView
		Missing    []missingView
	}
	panelView struct {
		Name   string
		Plot   *plotView
		Legend []legendView
	}
	legendView struct {
		Class, Name string
		Mark        markView
	}
	// missingView is a reason, with the only cell or the number of cells that it applies to.
	missingView struct {
		Reason, Only, Cells string
		Count               int
	}
	valuesView struct {
		Head []string
		Rows [][]string
		File string
		CSV  template.URL
	}
)

// HTML writes a page that needs no other file and no network.
func HTML(w io.Writer, r *experiment.Results, figures []Figure) error {
	page := pageView{Style: template.CSS(style), Script: template.JS(script), Contents: contents(figures), Repeated: repeatedTable().view()}
	page.Source = source(r)
	findings, chosen := Findings(figures)
	if page.Findings = findings; chosen != nil {
		v := chosenView(chosen)
		page.Chosen = &v
	}
	for _, p := range Summary(r, figures) {
		page.Summary = append(page.Summary, passageView{p.Title, listView{Sentences: p.Sentences}})
	}
	suite := ""
	for i, f := range figures {
		view := newFigureView(i, f, i == 0 || figures[i-1].Experiment.Name != f.Experiment.Name)
		if f.Experiment.Spec.Suite != suite {
			suite = f.Experiment.Spec.Suite
			view.Suite = newSuiteView(suite, figures)
		}
		page.Figures = append(page.Figures, view)
	}
	return pageTemplate.ExecuteTemplate(w, "page", page)
}

// newFigureView prepares a figure's drawing, legend, sentences and table. The first figure of an experiment has the reason for it.
func newFigureView(n int, f Figure, first bool) figureView {
	v := figureView{
		Number: n + 1, Title: title(f), Caption: caption(f),
		Sentences: newSentencesView(Sentences(f)), Remarks: newSentencesView(Remarks(f)),
		Table: newValuesView(f), Missing: missingViews(f.Missing),
	}
	if first {
		v.Why = f.Experiment.Spec.Why
	}
	for _, panel := range f.Panels {
		v.Panels = append(v.Panels, panelView{panel.name, newPlot(panel), legend(panel)})
	}
	v.Constant = f.constant()
	if len(f.Panels) == 0 && f.Drawings() > 0 {
		v.Plot = f.drawing()
		if f.By != "" {
			v.Legend = legend(f)
		}
	}
	return v
}

// chosenView is the figure of the first screen: the drawing, or the panel, with the compared bandwidth.
func chosenView(f *Figure) figureView {
	drawn := f
	for i := range f.Panels {
		if p := &f.Panels[i]; slices.ContainsFunc(Ratios(*p), func(r Ratio) bool { return r.Ours.Cell.Size == findingSize }) {
			drawn = p
			break
		}
	}
	v := figureView{Title: title(*f), Plot: drawn.drawing()}
	if drawn.By != "" {
		v.Legend = legend(*drawn)
	}
	return v
}

// fewSentences is how many sentences are shown before a fold.
const fewSentences = 6

// newSentencesView folds all sentences after the first few.
func newSentencesView(all []string) (v sentencesView) {
	n := min(len(all), fewSentences)
	v.First = listView{"sentences", all[:n]}
	if len(all) > n {
		v.More = &listView{"sentences", all[n:]}
	}
	return v
}

// missingViews lists what was not measured: each reason once.
func missingViews(list []Point) (views []missingView) {
	var reasons []string
	cells := make(map[string][]string)
	for _, p := range list {
		reason := short(p.Failed)
		if cells[reason] == nil {
			reasons = append(reasons, reason)
		}
		cells[reason] = append(cells[reason], p.Cell.String())
	}
	for _, reason := range reasons {
		v := missingView{Reason: reason, Count: len(cells[reason])}
		if v.Count == 1 {
			v.Only = cells[reason][0]
		} else {
			v.Cells = strings.Join(cells[reason], "; ")
		}
		views = append(views, v)
	}
	return views
}

// title is the experiment's title, with the metric unless the title names its only one.
func title(f Figure) string {
	text := f.Experiment.Spec.Title
	if text == "" {
		text = f.Experiment.Name
	}
	if len(f.Experiment.Spec.Metrics) > 1 || !strings.Contains(strings.ToLower(text), f.Metric) {
		text += ": " + f.Metric
	}
	if f.Apart != "" {
		text += ", " + f.Apart
	}
	return text
}

func firstLine(text string) string {
	line, _, _ := strings.Cut(text, "\n")
	return line
}

// caption says which values of a figure cannot be compared.
func caption(f Figure) string {
	mtus, depths, inlines := make(map[int]bool), make(map[int]bool), make(map[string]bool)
	trips := make(map[bool]bool)
	for _, l := range f.Lines {
		for _, p := range l.Points {
			if p.PathMTU != 0 {
				mtus[p.PathMTU] = true
			}
			if p.Depth != 0 {
				depths[p.Depth] = true
			}
			if p.Inline != "" {
				inlines[p.Inline] = true
			}
			trips[p.Tool.RoundTrip] = true
		}
	}
	text := ""
	if f.Experiment != nil && f.ofPathMTUs() != nil {
		text += "Drawn are ratios: dots on the line are equal. The table has the values. "
	}
	if len(mtus) > 1 {
		text += "The path MTUs differ: see the table. "
	}
	if len(depths) > 1 || len(inlines) > 1 {
		text += "Depths or inline data differ: see the table. "
	}
	if f.Metric == experiment.Latency && len(trips) > 1 {
		text += "Reads are whole round trips, the others are halves. "
	}
	if limit, of := f.limit(); limit > 0 {
		text += fmt.Sprintf("The limit is %s: %s. ", experiment.Quantity(limit, f.Metric), of)
	}
	if len(f.Cited) > 0 {
		text += "What is published is thin and grey, and of other machines: compare shapes and ratios, not values. "
	}
	text += "Medians; bars are intervals of the median, with the coverage that the table states."
	return text
}

// legend has a switch for each line.
func legend(f Figure) (list []legendView) {
	lines := append(append([]Curve(nil), f.Lines...), f.Cited...)
	styles := lineStyles(lines)
	for i, l := range lines {
		list = append(list, legendView{styles[i].class(l), l.Name, mark(styles[i].shape, 17, 6, l.Published)})
	}
	return list
}

// newValuesView prepares the table of all values, and the same as CSV; nil: there are none.
func newValuesView(f Figure) *valuesView {
	if len(f.Lines) == 0 {
		return nil
	}
	v := &valuesView{Head: []string{"what", "size", "pairs", "median", "interval", "coverage"}, File: f.fileName() + ".csv"}
	if f.Metric == experiment.Latency {
		v.Head = append(v.Head, "p99", "p99.9")
	}
	v.Head = append(v.Head, "of the limit", "slowest pair", "rounds", "path MTU", "depth, inline")
	var roles []string
	_, mixed := units(f)
	if f.Metric != experiment.CPU { // its values are by role
		roles = rolesOf([]Figure{f})
		v.Head = append(v.Head, roleHeads(f, roles)...)
	}
	v.Head = append(v.Head, "what carried the bytes")
	for _, l := range f.Lines {
		for i := range l.Points {
			v.Rows = append(v.Rows, valuesRow(f, l.Name, &l.Points[i], roles, mixed))
		}
	}
	var csv strings.Builder
	writeCSV(&csv, []Figure{f}) // a strings.Builder does not fail
	v.CSV = template.URL("data:text/csv;base64," + base64.StdEncoding.EncodeToString([]byte(csv.String())))
	return v
}

// roleHeads are the headings of processor time: the first has its name, the last its unit.
func roleHeads(f Figure, roles []string) []string {
	heads := append([]string(nil), roles...)
	if len(heads) == 0 {
		heads = []string{""}
	}
	heads[0] = "CPU " + heads[0]
	unit, mixed := units(f)
	if !mixed {
		unit = " (" + unit + ")"
	}
	heads[len(heads)-1] += unit
	return heads
}

// valuesRow prepares the row of a point.
func valuesRow(f Figure, name string, p *Point, roles []string, mixed bool) []string {
	size, mtu, depth := "", "", ""
	if p.Depth != 0 {
		depth = fmt.Sprint(p.Depth)
	}
	if p.Inline != "" {
		depth += ", " + p.Inline + " B"
	}
	if p.Cell.Size != 0 {
		size = p.Cell.Size.String()
	}
	if p.PathMTU != 0 {
		mtu = fmt.Sprint(p.PathMTU)
	}
	row := []string{name, size, fmt.Sprint(p.Cell.Pairs), experiment.Quantity(p.Summary.Median, f.Metric),
		interval(p.Summary, f.Metric), coverage(p.Summary)}
	if f.Metric == experiment.Latency {
		row = append(row, percentile(p.P99), percentile(p.P999))
	}
	share, slowest, note := "", "", p.Proof
	if p.Limit > 0 && f.Metric == experiment.Bandwidth {
		share = fmt.Sprintf("%.0f %%", 100*p.Summary.Median/p.Limit)
	}
	if p.Slowest > 0 {
		slowest = fmt.Sprintf("%.0f %%", 100*p.Slowest)
	}
	if odd := p.oddity(f.Metric); odd != "" {
		note += "; odd: " + odd
	}
	row = append(row, share, slowest, fmt.Sprint(p.Summary.N), mtu, depth)
	for _, role := range roles {
		text := ""
		if v, counted := p.CPU[role]; counted {
			text = processorTime(p, v, mixed)
		}
		row = append(row, text)
	}
	return append(row, note)
}

// percentile formats a percentile of latency; "": there is none.
func percentile(v float64) string {
	if v <= 0 {
		return ""
	}
	return experiment.Quantity(v, "p99")
}
