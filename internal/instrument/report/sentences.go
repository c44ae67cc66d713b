package report

import (
	"fmt"
	"slices"
	"strings"

	"vrdma.dev/vrdma/internal/instrument/experiment"
)

// better returns by which factor a is better than b.
func better(metric string, a, b float64) float64 {
	if experiment.Better(metric) {
		return a / b
	}
	return b / a
}

// A Ratio compares two cells that differ only in transport and tool.
type Ratio struct {
	Metric  string
	Ours    *Point
	Against *Point
	Factor  float64 // above 1: ours is better
	Sure    bool    // the intervals do not overlap, and neither is of a single run
}

// baselines are what vrdma is compared with: the first that a figure has.
var baselines = []string{experiment.TCP, experiment.Kernel}

// Ratios compares vrdma's points with TCP's of the same setting and size, or with those of the kernel's device if there is no TCP. A
// tool without a size is compared with all sizes.
func Ratios(f Figure) (list []Ratio) {
	if f.Metric == experiment.CPU { // more work takes more processor time
		return nil
	}
	for _, base := range baselines {
		if list = ratios(f, base); len(list) > 0 {
			return list
		}
	}
	return nil
}

func ratios(f Figure, base string) (list []Ratio) {
	var all, against []*Point
	for _, l := range f.Lines {
		for i := range l.Points {
			p := &l.Points[i]
			if p.Cell.Transport == base {
				against = append(against, p)
			} else if !p.Tool.Operations && (p.Cell.PerSide == 0 || p.Cell.Setting != experiment.VMs) { // many guests are not compared
				all = append(all, p)
			}
		}
	}
	for _, p := range all {
		var waits []string // of the baselines that p is compared with
		for _, o := range against {
			w := o.Cell.Waiting()
			if !comparable(p.Cell, o.Cell, base) || slices.Contains(waits, w) || w == experiment.Polls && p.Cell.Waiting() == experiment.Sleeps {
				continue
			}
			waits = append(waits, w)
			a, b := p.Summary, o.Summary
			list = append(list, Ratio{f.Metric, p, o, better(f.Metric, a.Median, b.Median), min(a.N, b.N) > 1 && (a.Low > b.High || a.High < b.Low)})
		}
	}
	return list
}

// comparable reports whether p differs from o of the baseline only in transport and tool. How the two wait may differ, which the name of the
// baseline then says.
func comparable(p, o experiment.Cell, base string) bool {
	return o.Setting == p.Setting && o.MTU == p.MTU && o.Rate == p.Rate && o.Delay == p.Delay && o.Pairs == p.Pairs && o.PerSide == p.PerSide && o.Share == p.Share &&
		(o.QPs == p.QPs || base == experiment.TCP) && (o.Size == p.Size || o.Size == 0) && (base == experiment.TCP || o.Tool == p.Tool && o.Wait == p.Wait)
}

// name is the name of the baseline. It says how the baseline waits if ours waits in another way.
func (r Ratio) name() string {
	switch {
	case r.Against.Cell.Transport != experiment.Kernel:
		if ours, theirs := r.Ours.Cell.Waiting(), r.Against.Cell.Waiting(); ours != theirs {
			return "TCP that " + theirs
		}
		return "TCP"
	case r.Against.Cell.Setting == experiment.GuestRXE:
		return "the kernel's rxe"
	}
	return "the kernel's device" // rxe or hardware, as --device says
}

// Sentences describes the ratios of a figure.
func Sentences(f Figure) (out []string) {
	for _, r := range Ratios(f) {
		what := fmt.Sprintf("%s (%s)", r.Ours.Cell.Tool, where(r.Ours.Cell))
		if r.Ours.Cell.Size != 0 {
			what = fmt.Sprintf("%s of %s", what, r.Ours.Cell.Size)
		}
		if r.Ours.Cell.Pairs > 1 {
			what += fmt.Sprintf(", %d pairs,", r.Ours.Cell.Pairs)
		}
		if r.Ours.Cell.Transport != experiment.Verbs {
			what += " over " + r.Ours.Cell.Transport
		}
		what += ", which " + r.Ours.Cell.Waiting() + ","
		ours, theirs := experiment.Quantity(r.Ours.Summary.Median, f.Metric), experiment.Quantity(r.Against.Summary.Median, f.Metric)
		switch {
		case min(r.Ours.Summary.N, r.Against.Summary.N) < 2:
			out = append(out, fmt.Sprintf("%s has %s, %s %s: of a single run, which proves nothing.", what, ours, r.name(), theirs))
		case !r.Sure:
			out = append(out, fmt.Sprintf("%s has %s, %s %s: within the spread of the rounds.", what, ours, r.name(), theirs))
		case r.Factor >= 1:
			out = append(out, fmt.Sprintf("%s has %s, %s %s: %s better.", what, ours, r.name(), theirs, times(r.Factor)))
		default:
			out = append(out, fmt.Sprintf("%s has %s, %s %s: %s worse.", what, ours, r.name(), theirs, times(1/r.Factor)))
		}
	}
	return out
}

// times describes a factor.
func times(f float64) string {
	if f >= 10 {
		return fmt.Sprintf("%.0f times", f)
	}
	return fmt.Sprintf("%.2f times", f)
}

// A Passage is a part of the summary.
type Passage struct {
	Title     string
	Sentences []string
}

// Summary returns the passages at the top of the report. Empty passages are left out.
func Summary(r *experiment.Results, figures []Figure) (out []Passage) {
	add := func(title string, sentences ...string) {
		if sentences = slices.DeleteFunc(sentences, func(s string) bool { return s == "" }); len(sentences) > 0 {
			out = append(out, Passage{title, sentences})
		}
	}
	add("What was measured", append(measured(r), provenance(r), origins(r.Parts), tools(r.Header.Machine), durations(r.Parts))...)
	add("By what factor vrdma is better; below 1 it is worse", verdicts(figures)...)
	add("What a GiB costs", costSentence(figures))
	add("What was not measured, and why", missing(figures)...)
	add("Threats to validity", threats(r)...)
	add("How to read it", append(asides(r, figures), proven(len(r.Records), figures))...)
	return out
}

// measured says where, when and how often was measured.
func measured(r *experiment.Results) []string {
	failed, repeated := 0, 0
	for _, rec := range r.Records {
		if rec.Failed != "" {
			failed++
		}
		repeated += rec.Repeated
	}
	text := fmt.Sprintf("%s, in an order that seed %d gives.", many(len(r.Records), "run"), r.Header.Seed)
	if failed > 0 {
		text += fmt.Sprintf(" %d failed, and say why below.", failed)
	}
	if repeated > 0 {
		text += fmt.Sprintf(" %d were repeated, because the machine was not given its processors.", repeated)
	}
	return []string{fmt.Sprintf("On %s, with vrdma %s, on %s.",
		machineText(r.Header.Machine), r.Header.Program, r.Header.Started.UTC().Format("2 January 2006, 15:04 UTC")), text}
}

// proven says whether all counters agree with the transports.
func proven(runs int, figures []Figure) string {
	var wrong []string
	for _, f := range figures {
		for _, l := range f.Lines {
			for i := range l.Points {
				if p := &l.Points[i]; strings.HasPrefix(p.Proof, "WRONG") {
					wrong = append(wrong, p.Cell.String())
				}
			}
		}
	}
	switch {
	case len(wrong) > 0:
		return "The counters contradict what carried the bytes in: " + strings.Join(wrong, "; ") + "."
	case runs > 0:
		return "What carried the bytes was checked with the device's counters for every value of a tool that moves some."
	}
	return ""
}

// suitesOf returns the suites of a part.
func suitesOf(p experiment.Part) string {
	var suites []string
	for _, text := range p.Experiments {
		list, err := experiment.Parse("results", []byte(text))
		if err != nil {
			return "" // Gather has reported it
		}
		for _, e := range list {
			if !slices.Contains(suites, e.Spec.Suite) {
				suites = append(suites, e.Spec.Suite)
			}
		}
	}
	return strings.Join(suites, ", ")
}

// durations says how long each suite took.
func durations(parts []experiment.Part) string {
	var words []string
	for _, p := range parts {
		if suites := suitesOf(p); suites != "" && p.Took > 0 {
			words = append(words, fmt.Sprintf("%s %.1f", suites, p.Took.Minutes()))
		}
	}
	if len(words) == 0 {
		return ""
	}
	return "Minutes that runs took: " + strings.Join(words, "; ") + "."
}

// origins lists the suites that were measured with another program, on another machine or on another day than the first. They cannot
// be compared.
func origins(parts []experiment.Part) string {
	const day = "2 January 2006"
	var words []string
	for _, p := range parts {
		first := parts[0]
		var differs []string
		if p.Program != first.Program {
			differs = append(differs, "vrdma "+p.Program)
		}
		if a, b := machineText(p.Machine), machineText(first.Machine); a != b {
			differs = append(differs, a)
		}
		if date := p.Started.UTC().Format(day); date != first.Started.UTC().Format(day) {
			differs = append(differs, date)
		}
		if suites := suitesOf(p); suites != "" && len(differs) > 0 {
			words = append(words, suites+": "+strings.Join(differs, ", "))
		}
	}
	if len(words) == 0 {
		return ""
	}
	return "Not all of it: " + strings.Join(words, "; ") + "."
}

// machineText describes a machine.
func machineText(m experiment.Machine) string {
	return fmt.Sprintf("%s with %d processors, %s, %.0f GiB of memory", m.Processor, m.Processors, m.Kernel, float64(m.Memory)/(1<<30))
}

// asides describes idle daemons, what stood for settings, and values above limits.
func asides(r *experiment.Results, figures []Figure) (out []string) {
	idle := -1.0
	var settings []string
	stood := make(map[string][]string) // descriptions by setting
	for _, rec := range r.Records {
		if rec.Failed != "" {
			continue
		}
		if rec.Cell.Setting != experiment.GuestRXE {
			idle = max(idle, rec.Idle)
		}
		name := rec.Cell.Setting
		if rec.Setting == "" || slices.Contains(stood[name], rec.Setting) {
			continue
		}
		if stood[name] == nil {
			settings = append(settings, name)
		}
		stood[name] = append(stood[name], rec.Setting)
	}
	for _, name := range settings {
		out = append(out, fmt.Sprintf("Setting %s: %s.", name, strings.Join(stood[name], "; ")))
	}
	if idle >= 0 {
		out = append(out, fmt.Sprintf("Before the first run, the daemons of a setting took %.2g %% of a processor at most.", 100*idle))
	}
	var copied, linked, odds []string // above a copy in memory, above a link
	limits := 0
	for _, f := range figures {
		for _, l := range f.Lines {
			for i := range l.Points {
				p := &l.Points[i]
				if f.Metric == experiment.Bandwidth && p.Limit > 0 {
					limits++
				}
				if p.over(f.Metric) {
					over := &copied
					if p.Cell.Rate != "" {
						over = &linked
					}
					*over = append(*over, fmt.Sprintf("%s (%s, and %s)", p.Cell, experiment.Quantity(p.Summary.Median, f.Metric), experiment.Quantity(p.Limit, f.Metric)))
				}
				if p.Odd != "" {
					odds = append(odds, fmt.Sprintf("%s: %s", p.Cell, p.Odd))
				}
			}
		}
	}
	if len(copied) > 0 {
		out = append(out, "Above a copy in memory measured beside it: "+strings.Join(copied, "; ")+".")
	}
	if len(linked) > 0 {
		out = append(out, "Above what the link's rate allows: "+strings.Join(linked, "; ")+". The link is a token bucket: after a pause "+
			"256 kB pass at once, so messages that are not much larger, there and back in turn, show up to twice its rate.")
	}
	if limits > 0 && len(copied)+len(linked) == 0 {
		out = append(out, fmt.Sprintf("None of %d bandwidths is above its yardstick: the link, or a copy in memory measured beside it.", limits))
	}
	if len(odds) > 0 {
		out = append(out, "Points that break the order of their neighbours: "+strings.Join(odds, "; ")+".")
	}
	return out
}
