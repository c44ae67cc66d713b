package report

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"vrdma.dev/vrdma/internal/instrument/experiment"
	"vrdma.dev/vrdma/internal/instrument/published"
)

// notRepeated says for published experiments that no suite repeats what is missing here. A test checks that each published
// experiment is here or in a suite.
var notRepeated = map[string]string{
	"M-4":      "a ratio of two systems, no measurement: the table of cases has both",
	"S-FF-APP": "TensorFlow with RDMA, of 2018, on GPUs: cannot be installed here",
	"S-FF-TCP": "sockets over FreeFlow, two values of its README: the suites lab and mikelangelo have sockets over verbs",
	"T-2020":   "hardware of an earlier year with the tools of T-SR-BW, which is repeated",
}

// repeatedTable lists every published experiment: the experiments here that repeat it, how many of its values are drawn, and why the others
// are not.
func repeatedTable() *table {
	all, err1 := published.All()
	suites, err2 := experiment.Suites()
	if err1 != nil || err2 != nil {
		return nil // both are embedded, and tests read them
	}
	t := &table{title: "Published experiments", head: []string{"experiment", "systems", "values", "drawn", "repeated by", "not drawn, and why"},
		why: "Every experiment of the sources whose values vrdma has. A published value is drawn if an experiment here has its tool, metric and size between two hosts."}
	for _, u := range uses(suites, all) {
		by := reason("nothing")
		if len(u.by) > 0 {
			by = field{text: strings.Join(u.by, ", ")}
		}
		var why []string
		for _, r := range slices.Sorted(maps.Keys(u.missed)) {
			why = append(why, fmt.Sprintf("%d: %s", u.missed[r], r))
		}
		t.add(field{text: u.experiment}, field{text: strings.Join(u.systems, ", ")}, field{text: fmt.Sprint(u.values)}, field{text: fmt.Sprint(u.drawn)}, by,
			field{text: strings.Join(why, "; ")})
	}
	return t
}

// A use says how the values of a published experiment are used.
type use struct {
	experiment    string
	systems, by   []string
	values, drawn int
	missed        map[string]int // how many values are not drawn, by reason
}

// uses returns the use of each published experiment, in the order of their names.
func uses(suites []*experiment.Experiment, all []published.Value) (list []*use) {
	var figures []*quoter // the figures with published values
	apart := make(map[string]bool)
	for _, e := range suites {
		if e.Spec.Like == "" {
			continue
		}
		for _, metric := range experiment.Metrics {
			draws := slices.ContainsFunc(e.Spec.Tools, func(name string) bool {
				tool, _ := experiment.FindTool(name)
				return drawn(e, tool, metric)
			})
			if !draws {
				continue
			}
			q := newQuoter(e, metric, by(e), all)
			if !slices.ContainsFunc(distances(e), func(d string) bool { return cites(e, d) }) {
				for _, like := range q.likes {
					apart[like] = true
				}
				continue
			}
			figures = append(figures, q)
		}
	}
	known := make(map[string]*use)
	for i := range all {
		v := &all[i]
		u := known[v.Experiment]
		if u == nil {
			u = &use{experiment: v.Experiment, by: repeating(suites, v.Experiment), missed: make(map[string]int)}
			known[v.Experiment] = u
			list = append(list, u)
		}
		if u.values++; !slices.Contains(u.systems, v.System) {
			u.systems = append(u.systems, v.System)
		}
		why, closest := notRepeated[v.Experiment], 0
		if why == "" && apart[v.Experiment] {
			why = "repeated within one host only, and published values are of two hosts"
		}
		for _, q := range figures {
			if !q.like(v) {
				continue
			}
			if text, step := q.excludes(v); step > closest {
				why, closest = text, step
			}
		}
		if why == "" && closest > 0 {
			u.drawn++
		} else {
			u.missed[why]++
		}
	}
	slices.SortFunc(list, func(a, b *use) int { return strings.Compare(a.experiment, b.experiment) })
	return list
}

// repeating returns the names of the experiments that repeat a published one.
func repeating(suites []*experiment.Experiment, name string) (list []string) {
	for _, e := range suites {
		for like := range strings.SplitSeq(e.Spec.Like, ",") {
			if strings.TrimSpace(like) == name {
				list = append(list, e.Name)
			}
		}
	}
	return list
}
