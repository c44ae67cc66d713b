package report

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"vrdma.dev/vrdma/internal/instrument/experiment"
	"vrdma.dev/vrdma/internal/instrument/published"
)

// metrics maps our metrics to those of publications.
var metrics = map[string][]string{
	experiment.Latency: {"lat_typical", "lat", "lat_mean"}, experiment.Bandwidth: {"bw_avg", "bw", "bw_mean", "bw_aggregate"},
	experiment.Rate: {"msg_rate"}, experiment.Time: {"time_mean"}, experiment.CPU: {"cpu", "cpu_client", "cpu_server"},
}

// cites reports whether the figure of an experiment at this distance has published values: they are of two hosts.
func cites(e *experiment.Experiment, apart string) bool {
	return distance(e.Spec.Settings[0]) == twoHosts && apart == "" || apart == twoHosts
}

// A quoter selects the published values of a figure.
type quoter struct {
	e          *experiment.Experiment
	metric, by string
	likes      []string
	hardwares  bool // the published experiments have bare metal of several kinds
}

func newQuoter(e *experiment.Experiment, metric, by string, all []published.Value) *quoter {
	q := &quoter{e: e, metric: metric, by: by}
	for like := range strings.SplitSeq(e.Spec.Like, ",") {
		q.likes = append(q.likes, strings.TrimSpace(like))
	}
	q.hardwares = len(q.likes) > 1 && severalHardwares(q.likes, all)
	return q
}

// like reports whether the figure repeats the value's experiment.
func (q *quoter) like(v *published.Value) bool { return slices.Contains(q.likes, v.Experiment) }

// excludes says why a value of an experiment that the figure repeats is not drawn; "": it is drawn. A later step is a closer miss.
func (q *quoter) excludes(v *published.Value) (why string, step int) {
	tool, fits := publishedTool(q.e, v.Tool)
	guests := strings.HasPrefix(v.Setting, "vm2vm") || strings.HasPrefix(v.Setting, "kvm")
	switch {
	case !slices.Contains(metrics[q.metric], v.Metric):
		return metricReason(v.Metric), 1
	case guests != experiment.Guests(q.e.Spec.Settings[0]):
		return "guests and hosts are not drawn beside each other; the tables quote these", 2
	case !fits:
		return "of " + tool + ": one operation stands for three, which bounds the time of make report", 3
	case q.e.Spec.Panels && tool == "":
		return "the source names no operation, and each panel is of one", 4
	case q.hardwares && v.System == "bare-metal":
		return "bare metal of several machines is not averaged", 5
	case q.by == "size" && v.Size == 0:
		return "the source states no size; the tables quote it", 6
	case q.by == "size" && v.Size > int64(slices.Max(q.e.Spec.Sizes)):
		return "larger messages than those measured here", 7
	case q.by == "pairs" && v.Pairs > 2*slices.Max(q.e.Spec.Pairs):
		return "more than twice the pairs that are measured here: two processors carry no more", 8
	}
	return "", 9
}

// metricReason says why a published metric is not drawn beside ours.
func metricReason(metric string) string {
	base, kind, _ := strings.Cut(metric, "_")
	switch {
	case strings.HasPrefix(kind, "run"):
		return "one of ten runs: their mean is drawn with the range of the runs"
	case base == "lat" && (kind == "avg" || kind == "stdev" || kind == "p99"):
		return "average, deviation or percentile of the messages of one run: the median is drawn"
	case base == "cpu":
		return "processor time of an application, a router or a text: the tables quote processor time"
	case metric == "msg_rate":
		return "message rate: bandwidth of the same runs, by size, is drawn"
	case strings.Contains(kind, "low") || strings.Contains(kind, "high") || strings.Contains(kind, "increase") || strings.Contains(kind, "least") || strings.Contains(kind, "less"):
		return "a range that a text states: the tables quote it"
	}
	return "another metric of an experiment whose figure is drawn"
}

// cited returns the published lines of the figures that an experiment is like. A line of a tool that the experiment runs belongs to
// that tool, others to all. Guests stand beside guests only. If several figures have a line of bare metal, each is of other hardware: then
// there is none. Where a publication has each of its runs, the range of the runs is the interval.
func cited(e *experiment.Experiment, metric, by string) ([]Curve, error) {
	if e.Spec.Like == "" {
		return nil, nil
	}
	all, err := published.All()
	if err != nil {
		return nil, err
	}
	q := newQuoter(e, metric, by, all)
	f := &Figure{}
	runs := make(map[string]map[string][]float64) // by point and run: the processes
	for _, v := range all {
		if !q.like(&v) {
			continue
		}
		base, run, isRun := strings.Cut(v.Metric, "_run")
		if isRun {
			v.Metric = base + "_mean"
		}
		if why, _ := q.excludes(&v); why != "" {
			continue
		}
		tool, _ := publishedTool(e, v.Tool)
		name := q.name(&v, tool)
		if isRun {
			at := pointKey(name, v.Size, max(v.Pairs, 1))
			if runs[at] == nil {
				runs[at] = make(map[string][]float64)
			}
			runs[at][run] = append(runs[at][run], v.Value)
			continue
		}
		role := ""
		if metric == experiment.CPU {
			role = strings.TrimPrefix(strings.TrimPrefix(v.Metric, "cpu"), "_")
		}
		f.cite(name, Point{
			role: role,
			Cell: experiment.Cell{Tool: tool, Size: experiment.Size(v.Size), Pairs: max(v.Pairs, 1)}, Proof: v.Source, Processes: 1,
			Summary: experiment.Summary{N: 1, Median: v.Value, Low: v.Value, High: v.Value},
		}, by)
	}
	for _, l := range f.Lines {
		for i := range l.Points {
			p := &l.Points[i]
			p.addRuns(runs[pointKey(l.Name, int64(p.Cell.Size), p.Cell.Pairs)])
		}
		slices.SortFunc(l.Points, func(a, b Point) int {
			return cmp.Or(cmp.Compare(a.Cell.Size, b.Cell.Size), cmp.Compare(a.Cell.Pairs, b.Cell.Pairs))
		})
	}
	return f.Lines, nil
}

func pointKey(name string, size int64, pairs int) string {
	return fmt.Sprint(name, "\t", size, "\t", pairs)
}

// name is the name of a value's line.
func (q *quoter) name(v *published.Value, tool string) string {
	name := v.System
	if tool != "" {
		name = tool + ", " + name
	}
	if detail := settingDetail(v.Setting); detail != "" {
		name += ", " + detail
	}
	if role, found := strings.CutPrefix(v.Metric, "cpu_"); found {
		name += ": " + role
	}
	if q.by == "" && v.Pairs > 1 {
		name += fmt.Sprintf(", %d at once", v.Pairs)
	}
	return name + " (published)"
}

// addRuns makes the range of published runs the interval of their mean. A run's value is the mean of its processes.
func (p *Point) addRuns(runs map[string][]float64) {
	if len(runs) < 2 {
		return
	}
	var means []float64
	for _, processes := range runs {
		sum := 0.0
		for _, v := range processes {
			sum += v
		}
		means = append(means, sum/float64(len(processes)))
	}
	p.Summary.N, p.Summary.Low, p.Summary.High = len(means), slices.Min(means), slices.Max(means)
}

// publishedSpread describes what a published value is the mean of.
func publishedSpread(p Point, metric string) string {
	text := ""
	if p.Processes > 1 {
		text = fmt.Sprintf(", mean of %d processes", p.Processes)
	}
	if p.Summary.N > 1 {
		text += fmt.Sprintf(", mean of %d runs from %s to %s", p.Summary.N, experiment.Quantity(p.Summary.Low, metric), experiment.Quantity(p.Summary.High, metric))
	}
	return text
}

// severalHardwares reports whether the figures have values of bare metal with different hardware, which is the first word of the setting.
func severalHardwares(likes []string, all []published.Value) bool {
	first := ""
	for _, v := range all {
		if v.System != "bare-metal" || !slices.Contains(likes, v.Experiment) {
			continue
		}
		hardware, _, _ := strings.Cut(v.Setting, " ")
		if first == "" {
			first = hardware
		}
		if hardware != first {
			return true
		}
	}
	return false
}

// cite adds a published point. Several values of one point, such as of four senders, become their mean.
func (f *Figure) cite(name string, p Point, by string) {
	for i := range f.Lines {
		l := &f.Lines[i]
		if l.Name != name {
			continue
		}
		for j := range l.Points {
			o := &l.Points[j]
			if by != "" && o.Cell.Size == p.Cell.Size && o.Cell.Pairs == p.Cell.Pairs {
				n := float64(o.Processes)
				mean := (o.Summary.Median*n + p.Summary.Median) / (n + 1)
				o.Processes++
				o.Summary = experiment.Summary{N: 1, Median: mean, Low: mean, High: mean}
				return
			}
		}
	}
	f.add(name, p)
	i := slices.IndexFunc(f.Lines, func(l Curve) bool { return l.Name == name })
	f.Lines[i].Published = true
}

// publishedTool returns the tool of a published value; "": not stated.
func publishedTool(e *experiment.Experiment, text string) (tool string, fits bool) {
	words := strings.Fields(text)
	if len(words) > 1 && words[0] == "qperf" {
		words = words[1:]
	}
	if len(words) == 0 {
		return "", true
	}
	if _, known := experiment.FindTool(words[0]); !known {
		return "", true
	}
	return words[0], slices.Contains(e.Spec.Tools, words[0])
}

// settingDetail distinguishes published values of one system.
func settingDetail(setting string) string {
	_, detail, found := strings.Cut(setting, "; ")
	if !found {
		return ""
	}
	return strings.ReplaceAll(detail, "; ", ", ")
}
