package doctor

import (
	"fmt"
	"io"
	"strings"
	"unicode/utf8"
)

// Print prints findings with a heading for each group.
func Print(w io.Writer, found []Finding) {
	for len(found) > 0 {
		n := 1
		for n < len(found) && found[n].Group == found[0].Group {
			n++
		}
		printGroup(w, found[:n])
		found = found[n:]
	}
}

// printGroup prints everything available in one paragraph, and each missing thing with its remedy.
// Things with the same remedy share a line.
func printGroup(w io.Writer, found []Finding) {
	fmt.Fprintln(w, found[0].Group)
	var have []string
	for _, f := range found {
		if f.Outcome == Yes {
			have = append(have, named(f)+" "+f.Found)
		}
	}
	if len(have) > 0 {
		wrap(w, "  yes  ", strings.Join(have, " · "))
	}
	for i := 0; i < len(found); {
		f, names := found[i], []string{named(found[i])}
		for i++; i < len(found) && found[i].Outcome == f.Outcome && found[i].Do == f.Do; i++ {
			names = append(names, named(found[i]))
		}
		if f.Outcome == Yes {
			continue
		}
		mark := "  no   "
		if f.Outcome == Unknown {
			mark = "  ?    "
		}
		wrap(w, mark, fmt.Sprintf("%s: %s; for %s: %s", strings.Join(names, ", "), f.Found, experiments(f.For), f.Do))
	}
}

// named returns a finding's name, with a star if it is needed.
func named(f Finding) string {
	if f.Needed {
		return f.Name + "*"
	}
	return f.Name
}

// wrap prints a text in lines of 100 columns.
func wrap(w io.Writer, mark, text string) {
	const width = 100
	line := mark
	for word := range strings.FieldsSeq(text) {
		if utf8.RuneCountInString(line)+utf8.RuneCountInString(word) >= width {
			fmt.Fprintln(w, strings.TrimRight(line, " "))
			line = strings.Repeat(" ", len(mark))
		}
		line += word + " "
	}
	fmt.Fprintln(w, strings.TrimRight(line, " "))
}

// experiments joins the names of suites. All suites are "all"; none means the user's own experiments.
func experiments(list []string) string {
	if len(list) == len(Experiments) {
		return "all"
	}
	if len(list) == 0 {
		return "your own"
	}
	return strings.Join(list, ", ")
}
