package report

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"vrdma.dev/vrdma/internal/instrument/experiment"
)

// A Point is the result of all rounds of a cell.
type Point struct {
	Cell    experiment.Cell
	Tool    experiment.Tool
	Summary experiment.Summary
	P99     float64 // 0: unknown
	P999    float64 // 0: unknown; it needs ten thousand messages
	// CPU is processor time by role, in seconds per GiB or per million messages (perWhat). Busy is the number of busy processors
	// by role: core-seconds per second of transfer.
	CPU, Busy map[string]float64
	StartUp   bool    // CPU and Busy include the start of the programs: the tool does one transfer
	Limit     float64 // limit of the bandwidth in bytes/s; 0: none
	LimitOf   string
	Claimed   float64 // the bandwidth that the tool printed, where the devices counted it; 0: none
	Slowest   float64 // bandwidth of the slowest pair over that of the fastest; 0: one pair
	Processes int     // a published value is the mean of so many processes
	StoodFor  string  // what stood for the setting, if not obvious
	Odd       string  // how it contradicts its neighbours
	Proof     string
	PathMTU   int
	Depth     int    // outstanding requests; 0: unknown
	Inline    string // largest inline message in bytes; "": unknown
	Failed    string // why there is no value
	Values    []float64
	Repeated  int

	roles map[string]experiment.Summary // busy processors by role
	role  string                        // role of the summary, in a figure of metric cpu
}

// A Curve is the points of one series, by size or by pairs.
type Curve struct {
	Name      string
	Points    []Point
	Published bool
}

// A Figure is one metric of one experiment.
type Figure struct {
	Experiment *experiment.Experiment
	Metric     string
	By         string // "size" or "pairs"; "": each line has one point
	Apart      string // which settings it has, if the experiment is drawn twice: see distances
	Lines      []Curve
	Cited      []Curve // published values
	Missing    []Point
	Panels     []Figure // parts with few lines each; Lines and Cited then have all

	name  string  // of a panel
	whole []Curve // all lines of the figure that a panel belongs to: their values determine the axes
}

// Gather makes a figure for each metric of each experiment.
func Gather(r *experiment.Results) ([]Figure, error) {
	var figures []Figure
	for _, text := range r.Header.Experiments {
		list, err := experiment.Parse("results", []byte(text))
		if err != nil {
			return nil, err
		}
		for _, e := range list {
			for _, metric := range experiment.Metrics {
				for _, apart := range distances(e) {
					f, err := gather(r, e, metric, apart)
					if err != nil {
						return nil, err
					}
					if len(f.Lines)+len(f.Missing) > 0 {
						figures = append(figures, f)
					}
				}
			}
		}
	}
	slices.SortStableFunc(figures, func(a, b Figure) int {
		return cmp.Compare(rank(a.Experiment.Spec.Suite), rank(b.Experiment.Spec.Suite))
	})
	return figures, nil
}

// The two distances of settings. The values of publications are between two hosts, so they stand beside such settings only.
const (
	twoHosts = "two hosts"
	oneHost  = "one host"
)

// distance says how far apart the programs of a setting are.
func distance(setting string) string {
	switch setting {
	case experiment.Hosts, experiment.VMsApart, experiment.Remote:
		return twoHosts
	}
	return oneHost
}

// distances returns for which distances an experiment has figures; "": one figure for all. An experiment beside published
// values has a figure for each distance, so that like stands beside like.
func distances(e *experiment.Experiment) []string {
	var list []string
	for _, setting := range e.Spec.Settings {
		if d := distance(setting); !slices.Contains(list, d) {
			list = append(list, d)
		}
	}
	if e.Spec.Like == "" || len(list) < 2 {
		return []string{""}
	}
	return []string{twoHosts, oneHost}
}

// rank orders suites on the page: quick first, then the publications, then the users' own.
func rank(suite string) int {
	order := []string{"quick", "thesis", "slides", "lab", "progress", "mikelangelo", "speed"}
	if i := slices.Index(order, suite); i >= 0 {
		return i
	}
	return len(order)
}

// drawn reports whether a metric of a tool is drawn: one that the experiment names, else the metric of the tool.
func drawn(e *experiment.Experiment, t experiment.Tool, metric string) bool {
	if len(e.Spec.Metrics) > 0 {
		return slices.Contains(e.Spec.Metrics, metric) && t.Gives(metric)
	}
	return t.Metric == metric
}

// by returns the x axis of an experiment's figures; "": each line has one point.
func by(e *experiment.Experiment) string {
	switch {
	case len(e.Spec.Sizes) > 1:
		return "size"
	case len(e.Spec.Pairs) > 1:
		return "pairs"
	}
	return ""
}

func gather(r *experiment.Results, e *experiment.Experiment, metric, apart string) (f Figure, err error) {
	f = Figure{Experiment: e, Metric: metric, Apart: apart, By: by(e)}
	for _, c := range e.Cells() {
		tool, _ := experiment.FindTool(c.Tool)
		if !drawn(e, tool, metric) || apart != "" && distance(c.Setting) != apart {
			continue
		}
		p := point(r, e.Name, c, tool, metric)
		if p.Summary.N == 0 {
			if metric == tool.Metric || len(e.Spec.Metrics) > 0 && metric == e.Spec.Metrics[0] { // the reason is given once
				f.Missing = append(f.Missing, p)
			}
			continue
		}
		if metric != experiment.CPU {
			f.add(lineName(e, c, f.By), p)
			continue
		}
		// Each role is a line. The daemons take the place of a NIC.
		for _, role := range []string{"client", "server", "daemon", "qemu", "rest"} {
			one := p
			one.Summary, one.role = p.roles[role], role
			if one.Summary.N > 0 {
				f.add(lineName(e, c, f.By)+": "+role, one)
			}
		}
	}
	f.flag()
	if cites(e, apart) {
		if f.Cited, err = cited(e, metric, f.By); err != nil {
			return f, err
		}
	}
	f.split()
	return f, nil
}

// add adds a point to a line.
func (f *Figure) add(name string, p Point) {
	i := slices.IndexFunc(f.Lines, func(l Curve) bool { return l.Name == name })
	if i < 0 {
		i = len(f.Lines)
		f.Lines = append(f.Lines, Curve{Name: name})
	}
	f.Lines[i].Points = append(f.Lines[i].Points, p)
}

// odd is by how much a point may contradict its neighbours, beyond its interval, before it is marked.
const odd = 0.1

// flag marks points that are not monotonic: a larger message is not faster, and does not have less bandwidth.
func (f *Figure) flag() {
	if f.By != "size" || f.Metric != experiment.Latency && f.Metric != experiment.Bandwidth {
		return
	}
	for _, l := range f.Lines {
		for i := 1; i < len(l.Points); i++ {
			a, b := l.Points[i-1].Summary, l.Points[i].Summary
			if b.High < a.Low*(1-odd) && b.Median < a.Median {
				l.Points[i].Odd = fmt.Sprintf("less than for %s", l.Points[i-1].Cell.Size)
			}
		}
	}
}

// oddity describes what is odd about a point; "": nothing.
func (p *Point) oddity(metric string) string {
	if p.Odd == "" && p.over(metric) {
		return "above the limit"
	}
	return p.Odd
}

// overLimit is the tolerance for values above their limit.
const overLimit = 1.02

// over reports whether a bandwidth is above its limit.
func (p *Point) over(metric string) bool {
	return metric == experiment.Bandwidth && p.Limit > 0 && p.Summary.Median > p.Limit*overLimit
}

// point summarizes the rounds of a cell.
func point(r *experiment.Results, name string, c experiment.Cell, tool experiment.Tool, metric string) Point {
	p := Point{Cell: c, Tool: tool, CPU: make(map[string]float64), Busy: make(map[string]float64), roles: make(map[string]experiment.Summary)}
	var p99, p999, slowest, limits, claimed []float64
	per, busy := make(map[string][]float64), make(map[string][]float64)
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
		if v, has := rec.Values[metric]; has && metric != experiment.CPU {
			p.Values = append(p.Values, v)
		}
		if v := rec.Values["slowest"]; v > 0 {
			slowest = append(slowest, v)
		}
		if v := rec.Values["claimed"]; v > 0 {
			claimed = append(claimed, v)
		}
		if rec.Limit > 0 {
			limits, p.LimitOf = append(limits, rec.Limit), rec.LimitOf
		}
		p.StoodFor = rec.Setting
		if v := rec.Values["p99"]; v > 0 && rec.Samples >= samplesForP99 {
			p99 = append(p99, v)
		}
		if v := rec.Values["p999"]; v > 0 && rec.Samples >= samplesForP999 {
			p999 = append(p999, v)
		}
		p.Proof, p.PathMTU, p.Depth = rec.Proof, rec.MTU, rec.Depth
		if rec.Inline != nil {
			p.Inline = fmt.Sprint(*rec.Inline)
		}
	}
	p.StartUp = !p.addCosts(r, name, metric, per, busy)
	if p.Failed == "" && len(p.Values) == 0 {
		p.Failed = "not measured: the run was ended before"
	}
	p.Summary = experiment.Summarize(p.Values)
	if len(p99) > 0 {
		p.P99 = experiment.Median(p99)
	}
	if len(p999) > 0 {
		p.P999 = experiment.Median(p999)
	}
	for role, list := range per {
		p.CPU[role] = experiment.Median(list)
	}
	for role, list := range busy {
		p.roles[role] = experiment.Summarize(list)
		p.Busy[role] = experiment.Median(list)
	}
	if len(slowest) > 0 {
		p.Slowest = experiment.Median(slowest)
	}
	if len(claimed) > 0 {
		p.Claimed = experiment.Median(claimed)
	}
	if len(limits) > 0 {
		p.Limit = experiment.Median(limits)
	}
	return p
}

// addCosts adds processor time of all rounds: per unit of work, and per second of transfer. It reports whether the values are without the
// start of the programs. Rounds that include it count only if there are no others.
func (p *Point) addCosts(r *experiment.Results, name, metric string, per, busy map[string][]float64) (steady bool) {
	var with, without []*experiment.Steady
	for i := range r.Records {
		rec := &r.Records[i]
		switch {
		case rec.Experiment != name || rec.Cell != p.Cell || rec.Failed != "":
		case rec.Steady != nil:
			without = append(without, rec.Steady)
		default:
			s := &experiment.Steady{CPU: rec.CPU, Seconds: rec.Seconds, Samples: rec.Samples, Bytes: rec.Bytes, Payload: rec.Payload}
			if s.Bytes == 0 && s.Payload == 0 { // TCP: the tool does not count bytes
				s.Payload = rec.Values[experiment.Bandwidth] * rec.Seconds
			}
			with = append(with, s)
		}
	}
	list := with
	if len(without) > 0 {
		list = without
	}
	for _, s := range list {
		if work := effort(s, &p.Tool); work > 0 {
			for role, seconds := range s.CPU {
				per[role] = append(per[role], seconds/work)
			}
		}
		if s.Seconds > 0 {
			for role, seconds := range s.CPU {
				busy[role] = append(busy[role], seconds/s.Seconds)
			}
			if metric == experiment.CPU {
				p.Values = append(p.Values, (s.CPU["client"]+s.CPU["server"]+s.CPU["daemon"])/s.Seconds)
			}
		}
	}
	return len(without) > 0
}

// samplesForP999 and samplesForP99 are the fewest messages for a 99.9th and a 99th percentile: ten messages are above it.
const (
	samplesForP999 = 10000
	samplesForP99  = 1000
)

// perMessage reports whether processor time is per message, operation or connection, instead of per GiB.
func perMessage(tool *experiment.Tool) bool {
	return tool.Metric == experiment.Latency || tool.Metric == experiment.Rate
}

// perWhat is the unit of a tool's processor time.
func perWhat(tool *experiment.Tool) string {
	if perMessage(tool) {
		return "s/million"
	}
	return "s/GiB"
}

// effort is the divisor of processor time: GiB or millions of messages.
func effort(s *experiment.Steady, tool *experiment.Tool) float64 {
	if tool.Asks {
		return 0
	}
	if perMessage(tool) {
		return float64(s.Samples) / 1e6
	}
	if s.Bytes > 0 {
		return s.Bytes / (1 << 30)
	}
	return s.Payload / (1 << 30)
}

// lineName names the axes in which a line differs from others of its figure.
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
	if len(e.Spec.Delay) > 1 {
		parts = append(parts, "delay "+cmp.Or(c.Delay, "of none"))
	}
	if len(e.Spec.Settings) == 1 && len(e.Spec.PerSide) > 1 {
		parts = append(parts, where(c))
	}
	if len(e.Spec.Share) > 1 && c.Share != 0 {
		parts = append(parts, fmt.Sprintf("server with %d %% of a processor", c.Share))
	}
	if len(e.Spec.QueuePairs) > 1 {
		parts = append(parts, fmt.Sprintf("%d queue pairs", max(c.QPs, 1)))
	}
	switch w := c.Waiting(); {
	case w == experiment.Spins, w == experiment.Sleeps && rdma(c.Transport), w == experiment.Polls && !rdma(c.Transport) && !strings.Contains(c.Tool, "mpi"):
		parts = append(parts, w)
	}
	if by != "size" && len(e.Spec.Sizes) > 1 {
		parts = append(parts, c.Size.String())
	}
	if by != "pairs" && len(e.Spec.Pairs) > 1 {
		parts = append(parts, fmt.Sprintf("%d pairs", c.Pairs))
	}
	return strings.Join(parts, ", ")
}

// rdma reports whether programs of a transport use verbs.
func rdma(transport string) bool {
	return transport == experiment.Verbs || transport == experiment.Kernel
}

// where describes a setting.
func where(c experiment.Cell) string {
	if sides := c.Sides(); sides != "" {
		return sides
	}
	switch c.Setting {
	case experiment.Host:
		return "one host"
	case experiment.Hosts:
		return "two hosts"
	case experiment.GuestRXE:
		return "one guest"
	case experiment.VMs:
		return "two guests"
	case experiment.VMsApart:
		return "guests on two hosts"
	case experiment.Remote:
		return "two machines"
	}
	return c.Setting
}
