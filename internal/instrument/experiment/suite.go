package experiment

import (
	"embed"
	"fmt"
	"os"
	"path"
	"slices"
	"strings"
)

// The suites are documents, as a user's are.
//
//go:embed suites/*.yaml
var embedded embed.FS

// Suites returns the experiments of all suites in vrdma, sorted by name.
func Suites() ([]*Experiment, error) {
	entries, err := embedded.ReadDir("suites")
	if err != nil {
		return nil, err
	}
	var all []*Experiment
	for _, e := range entries {
		name := path.Join("suites", e.Name())
		text, err := embedded.ReadFile(name)
		if err != nil {
			return nil, err
		}
		list, err := Parse(e.Name(), text)
		if err != nil {
			return nil, err
		}
		all = append(all, list...)
	}
	return all, nil
}

// Choose returns the experiments that a user named: an experiment, a suite, "all", or a file.
func Choose(names []string) ([]*Experiment, error) {
	all, err := Suites()
	if err != nil {
		return nil, err
	}
	if len(names) == 0 {
		names = []string{"quick"}
	}
	var chosen []*Experiment
	for _, name := range names {
		found, err := choose(all, name)
		if err != nil {
			return nil, err
		}
		for _, e := range found {
			i := slices.IndexFunc(chosen, func(o *Experiment) bool { return o.Name == e.Name })
			switch {
			case i < 0:
				chosen = append(chosen, e)
			case chosen[i].Source != e.Source:
				return nil, fmt.Errorf("experiment %s is in %s and in %s: give one of them another name", e.Name, chosen[i].Source, e.Source)
			}
		}
	}
	return chosen, nil
}

func choose(all []*Experiment, name string) (found []*Experiment, err error) {
	for _, e := range all {
		if name == "all" || e.Name == name || e.Spec.Suite == name {
			found = append(found, e)
		}
	}
	if len(found) > 0 {
		return found, nil
	}
	text, err := os.ReadFile(name)
	if err != nil {
		return nil, fmt.Errorf("%s is neither an experiment (vrdma bench list) nor a file that can be read", name)
	}
	return Parse(name, text)
}

// SuiteNames returns the names of the suites.
func SuiteNames(all []*Experiment) (names []string) {
	for _, e := range all {
		if !slices.Contains(names, e.Spec.Suite) {
			names = append(names, e.Spec.Suite)
		}
	}
	slices.SortFunc(names, strings.Compare)
	return names
}
