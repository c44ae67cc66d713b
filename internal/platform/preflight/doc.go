// Package preflight finds, before a program starts, why it would not see the device: the binary
// does not load shared objects, or the machine lacks something.
//
// A Finding has the problem, in one line, and the remedy. With a fatal finding the program is not
// started; others are printed, and the program runs.
//
// Called by cmd/vrdma. It changes nothing and starts nothing, except a shell that prints its limits.
package preflight

import "vrdma.dev/vrdma/internal/printable"

// A Finding is one problem.
type Finding struct {
	What  string // the problem
	Do    string // the remedy
	Fatal bool
}

// String returns the finding in one line, which is safe to print: an image chooses the names in it.
func (f Finding) String() string { return printable.Text(f.What + ": " + f.Do) }

// Fatal returns the first fatal finding.
func Fatal(findings []Finding) (Finding, bool) {
	for _, f := range findings {
		if f.Fatal {
			return f, true
		}
	}
	return Finding{}, false
}
