package report

import (
	"fmt"
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

// repeatedTable lists every published experiment with the experiments here that repeat it, or the reason why none does.
func repeatedTable() *table {
	all, err1 := published.All()
	suites, err2 := experiment.Suites()
	if err1 != nil || err2 != nil {
		return nil // both are embedded, and tests read them
	}
	t := &table{title: "Published experiments", head: []string{"experiment", "systems", "values", "repeated by"},
		why: "Every experiment of the sources whose values vrdma has. A published value is drawn if an experiment here has its tool, metric and size between two hosts."}
	var names []string
	values, systems := make(map[string]int), make(map[string][]string)
	for _, v := range all {
		if values[v.Experiment] == 0 {
			names = append(names, v.Experiment)
		}
		values[v.Experiment]++
		if !slices.Contains(systems[v.Experiment], v.System) {
			systems[v.Experiment] = append(systems[v.Experiment], v.System)
		}
	}
	slices.Sort(names)
	for _, name := range names {
		by := reason(notRepeated[name])
		if list := repeating(suites, name); len(list) > 0 {
			by = field{text: strings.Join(list, ", ")}
		}
		t.add(field{text: name}, field{text: strings.Join(systems[name], ", ")}, field{text: fmt.Sprint(values[name])}, by)
	}
	return t
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
