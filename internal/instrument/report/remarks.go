package report

import (
	"fmt"
	"slices"
	"strings"

	"vrdma.dev/vrdma/internal/instrument/experiment"
)

// Remarks show where a published method misleads, with pairs of runs that differ in one parameter.
func Remarks(f Figure) (out []string) {
	var all []Point
	for _, l := range f.Lines {
		all = append(all, l.Points...)
	}
	if f.Metric == experiment.CPU { // a point appears once for each role
		return nil
	}
	// pairs calls g with points that differ in one parameter.
	pairs := func(differ func(*experiment.Cell) bool, g func(a, b Point)) {
		for _, a := range all {
			other := a.Cell
			if !differ(&other) {
				continue
			}
			for _, b := range all {
				if b.Cell == other {
					g(a, b)
				}
			}
		}
	}
	pairs(func(c *experiment.Cell) bool {
		was := c.PathMTU == 1024
		c.PathMTU = 4096
		return was
	}, func(a, b Point) {
		const headers = 82.0 // bytes of a RoCEv2 packet, with preamble and gap
		ratio := a.Summary.Median / b.Summary.Median
		expected := (1024 / (1024 + headers)) / (4096 / (4096 + headers))
		text := fmt.Sprintf("Path MTU 1024 against 4096, nothing else changed: %s and %s, a ratio of %.3f",
			experiment.Quantity(a.Summary.Median, f.Metric), experiment.Quantity(b.Summary.Median, f.Metric), ratio)
		if a.Cell.Rate != "" {
			text += fmt.Sprintf(" on a link of %s. Headers alone give %.3f, which is what was published as the penalty of SR-IOV (0.944).", a.Cell.Rate, expected)
		} else {
			text += " without a limit: there a packet costs processor time, not bytes of the wire."
		}
		out = append(out, text)
	})
	once := func(text string) string { // the explanation is printed with the first remark
		if slices.ContainsFunc(out, func(o string) bool { return strings.HasSuffix(o, text) }) {
			return ""
		}
		return text
	}
	pairs(func(c *experiment.Cell) bool {
		was := c.Wait == experiment.Poll
		c.Wait = experiment.Event
		return was
	}, func(a, b Point) {
		text := fmt.Sprintf("%s, %s", a.Cell.Tool, where(a.Cell))
		if a.Cell.Size != 0 {
			text += ", " + a.Cell.Size.String()
		}
		out = append(out, fmt.Sprintf("%s: %s polling, %s with events: %s.%s", text, experiment.Quantity(a.Summary.Median, f.Metric), experiment.Quantity(b.Summary.Median, f.Metric), factor(f.Metric, a, b),
			once(" Who does not say how a program waited says little.")))
	})
	shares(all, f.Metric, &out)
	for _, p := range all {
		if p.Claimed > 0 && f.Metric == experiment.Bandwidth {
			out = append(out, fmt.Sprintf("%d pairs, %s: perftest's lines add up to %s, the devices counted %s in the same window.%s",
				p.Cell.Pairs, where(p.Cell), experiment.Quantity(p.Claimed, f.Metric), experiment.Quantity(p.Summary.Median, f.Metric),
				once(" A line of perftest is of one second, and lines are a fifth of a second or more apart beside that: in between it measures the processor's frequency, busily, and does not count.")))
		}
	}
	return out
}

// shares shows what a limited server costs each operation. One-sided operations do not use the server's processor.
func shares(all []Point, metric string, out *[]string) {
	for _, a := range all {
		for _, b := range all {
			if whole := a.Cell; a.Cell.Share != 0 {
				if whole.Share = 0; b.Cell == whole {
					*out = append(*out, fmt.Sprintf("%s, a server with %d %% of a processor: %s instead of %s, a ratio of %.2f.", a.Cell.Tool, a.Cell.Share,
						experiment.Quantity(a.Summary.Median, metric), experiment.Quantity(b.Summary.Median, metric), a.Summary.Median/b.Summary.Median))
				}
			}
		}
	}
}

// factor describes the ratio of two points.
func factor(metric string, a, b Point) string {
	x := better(metric, a.Summary.Median, b.Summary.Median)
	if a.Summary.Low <= b.Summary.High && b.Summary.Low <= a.Summary.High {
		return "within the spread"
	}
	if x >= 1 {
		return "polling is " + times(x) + " better"
	}
	return "events are " + times(1/x) + " better"
}
