package report

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"vrdma/internal/experiment"
	"vrdma/internal/published"
)

// A Point is a cell with what its rounds gave.
type Point struct {
	Cell    experiment.Cell
	Tool    experiment.Tool
	Summary experiment.Summary
	P99     float64 // 0: there is none
	// CPU is processor time in seconds per GiB, and per million messages for latency tools, by
	// role.
	CPU      map[string]float64
	Proof    string
	PathMTU  int
	Failed   string // why there is no value
	Values   []float64
	Repeated int
}

// A Line is the points of one thing, by size or by pairs.
type Line struct {
	Name      string
	Points    []Point
	Published bool
}

// A Figure is what one experiment gave.
type Figure struct {
	Experiment *experiment.Experiment
	Metric     string
	By         string // "size" or "pairs"; "": each line has one point
	Lines      []Line
	Cited      []Line // published values
	Missing    []Point
}

// Gather makes figures of results: one for each metric of each experiment.
func Gather(r *experiment.Results) ([]Figure, error) {
	var figures []Figure
	for _, text := range r.Header.Experiments {
		list, err := experiment.Parse("results", []byte(text))
		if err != nil {
			return nil, err
		}
		for _, e := range list {
			for _, metric := range []string{experiment.Latency, experiment.Bandwidth} {
				f, err := gather(r, e, metric)
				if err != nil {
					return nil, err
				}
				if len(f.Lines)+len(f.Missing) > 0 {
					figures = append(figures, f)
				}
			}
		}
	}
	return figures, nil
}

func gather(r *experiment.Results, e *experiment.Experiment, metric string) (f Figure, err error) {
	f = Figure{Experiment: e, Metric: metric}
	switch {
	case len(e.Spec.Sizes) > 1:
		f.By = "size"
	case len(e.Spec.Pairs) > 1:
		f.By = "pairs"
	}
	at := make(map[string]int)
	for _, c := range e.Cells() {
		tool, _ := experiment.FindTool(c.Tool)
		if tool.Metric != metric {
			continue
		}
		p := point(r, e.Name, c, tool)
		if p.Summary.N == 0 {
			f.Missing = append(f.Missing, p)
			continue
		}
		name := lineName(e, c, f.By)
		i, known := at[name]
		if !known {
			i = len(f.Lines)
			at[name] = i
			f.Lines = append(f.Lines, Line{Name: name})
		}
		f.Lines[i].Points = append(f.Lines[i].Points, p)
	}
	f.Cited, err = cited(e, metric)
	return f, err
}

// point is what the rounds of a cell gave.
func point(r *experiment.Results, name string, c experiment.Cell, tool experiment.Tool) Point {
	p := Point{Cell: c, Tool: tool, CPU: make(map[string]float64)}
	var p99 []float64
	per := make(map[string][]float64)
	for i := range r.Records {
		rec := &r.Records[i]
		if rec.Experiment != name || rec.Cell != c {
			continue
		}
		p.Repeated += rec.Repeated
		if rec.Failed != "" {
			p.Failed = rec.Failed
			continue
		}
		p.Values = append(p.Values, rec.Values[tool.Metric])
		if v := rec.Values["p99"]; v > 0 {
			p99 = append(p99, v)
		}
		p.Proof, p.PathMTU = rec.Proof, rec.MTU
		if work := effort(rec, tool); work > 0 {
			for role, seconds := range rec.CPU {
				per[role] = append(per[role], seconds/work)
			}
		}
	}
	if p.Failed == "" && len(p.Values) == 0 {
		p.Failed = "not measured: the run was ended before"
	}
	p.Summary = experiment.Summarize(p.Values)
	if len(p99) > 0 {
		p.P99 = experiment.Median(p99)
	}
	for role, list := range per {
		p.CPU[role] = experiment.Median(list)
	}
	return p
}

// effort is what processor time is divided by: GiB that were moved, or millions of messages.
func effort(rec *experiment.Record, tool experiment.Tool) float64 {
	if tool.Metric == experiment.Latency {
		return float64(rec.Samples) / 1e6
	}
	if rec.Bytes > 0 {
		return rec.Bytes / (1 << 30)
	}
	return rec.Values[experiment.Bandwidth] * rec.Seconds / (1 << 30) // TCP: the tool counts no bytes
}

// lineName says in which values a line differs from the others of its figure.
func lineName(e *experiment.Experiment, c experiment.Cell, by string) string {
	parts := []string{c.Tool, c.Transport}
	if len(e.Spec.Settings) > 1 {
		parts = append(parts, where(c))
	}
	if len(e.Spec.MTU) > 1 && c.MTU != 0 {
		parts = append(parts, fmt.Sprintf("MTU %d", c.MTU))
	}
	if len(e.Spec.PathMTU) > 1 && c.PathMTU != 0 {
		parts = append(parts, fmt.Sprintf("path MTU %d", c.PathMTU))
	}
	if len(e.Spec.Rate) > 1 {
		parts = append(parts, cmp.Or(c.Rate, "no limit"))
	}
	if c.Transport != experiment.TCP && c.Wait == experiment.Event {
		parts = append(parts, "events")
	}
	if by != "size" && len(e.Spec.Sizes) > 1 {
		parts = append(parts, c.Size.String())
	}
	if by != "pairs" && len(e.Spec.Pairs) > 1 {
		parts = append(parts, fmt.Sprintf("%d pairs", c.Pairs))
	}
	return strings.Join(parts, ", ")
}

// where is a setting in words.
func where(c experiment.Cell) string {
	switch c.Setting {
	case experiment.Host:
		return "one host"
	case experiment.Hosts:
		return "two hosts"
	}
	return c.Setting
}

// metrics are what the publications call ours.
var metrics = map[string]string{experiment.Latency: "lat_typical", experiment.Bandwidth: "bw_avg"}

// cited are the published lines of the figure that an experiment is like: of the tools that it
// runs, by size.
func cited(e *experiment.Experiment, metric string) ([]Line, error) {
	if e.Spec.Like == "" {
		return nil, nil
	}
	all, err := published.All()
	if err != nil {
		return nil, err
	}
	at := make(map[string]int)
	var lines []Line
	for _, v := range all {
		tool, _, _ := strings.Cut(v.Tool, " ")
		if v.Experiment != e.Spec.Like || v.Metric != metrics[metric] || !slices.Contains(e.Spec.Tools, tool) || v.Size == 0 {
			continue
		}
		name := fmt.Sprintf("%s, %s (published)", tool, v.System)
		i, known := at[name]
		if !known {
			i = len(lines)
			at[name] = i
			lines = append(lines, Line{Name: name, Published: true})
		}
		p := Point{Cell: experiment.Cell{Tool: tool, Size: experiment.Size(v.Size), Pairs: max(v.Pairs, 1)}, Proof: v.Source}
		p.Summary = experiment.Summary{N: 1, Median: v.Value, Low: v.Value, High: v.Value}
		lines[i].Points = append(lines[i].Points, p)
	}
	for _, l := range lines {
		slices.SortFunc(l.Points, func(a, b Point) int { return cmp.Compare(a.Cell.Size, b.Cell.Size) })
	}
	return lines, nil
}
