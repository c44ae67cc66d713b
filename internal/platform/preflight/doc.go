// Package preflight says, before a program is started, why it would not see the
// device: the binary does not load shared objects, the machine lacks something.
//
// A missing thing is a Finding: what is wrong, in one line that names it, and what
// to do. A fatal finding means that starting the program is pointless; the others
// are told and the program runs.
//
// Called by cmd/vrdma. It only looks: it changes nothing and starts nothing.
package preflight

// A Finding is one thing that stands in the way.
type Finding struct {
	What  string // names the missing thing
	Do    string // what the user can do about it
	Fatal bool
}

func (f Finding) String() string { return f.What + ": " + f.Do }

// Fatal returns the first finding that makes starting pointless.
func Fatal(findings []Finding) (Finding, bool) {
	for _, f := range findings {
		if f.Fatal {
			return f, true
		}
	}
	return Finding{}, false
}
