package tenant

import (
	"errors"
	"fmt"
	"strings"
)

// An Error is one error of an object: its position, and the remedy.
type Error struct {
	File  string `json:"file,omitempty"`
	Line  int    `json:"line,omitempty"`
	Key   Key    `json:"key,omitzero"`
	Field string `json:"field,omitempty"` // "spec.allow[0].peer.nic"
	Text  string `json:"text"`
}

// Error is one line: two.yaml:12: NIC red/web: spec.address: 10.1.0.300 is not an address: ….
func (e *Error) Error() string {
	var b strings.Builder
	if e.File != "" {
		fmt.Fprintf(&b, "%s:%d: ", e.File, e.Line)
	}
	if e.Key != (Key{}) {
		fmt.Fprintf(&b, "%s: ", e.Key)
	}
	if e.Field != "" {
		fmt.Fprintf(&b, "%s: ", e.Field)
	}
	b.WriteString(e.Text)
	return b.String()
}

// Errors is a list of errors, printed one per line.
type Errors []*Error

func (list Errors) Error() string {
	lines := make([]string, len(list))
	for i, e := range list {
		lines[i] = e.Error()
	}
	return strings.Join(lines, "\n")
}

// err is the list as an error, nil if it is empty.
func (list Errors) err() error {
	if len(list) == 0 {
		return nil
	}
	return list
}

// Locate adds file and line to the Errors in err, for objects that Parse returned. Objects are sent to a daemon without
// lines, so the daemon's Errors have only object and field.
func Locate(err error, objects []Object) error {
	var list Errors
	if !errors.As(err, &list) {
		return err
	}
	from := make(map[Key]source, len(objects))
	for _, o := range objects {
		from[o.Key()] = o.Meta().from
	}
	located := make(Errors, len(list))
	for i, e := range list {
		e := *e
		if e.File == "" {
			from[e.Key].locate(&e)
		}
		located[i] = &e
	}
	return located
}

// String is "NIC red/web", "Tenant red".
func (k Key) String() string { return string(k.Kind) + " " + k.Path() }

// Path is the name on the command line: "red/web", for a Tenant "red".
func (k Key) Path() string {
	if k.Tenant == "" {
		return k.Name
	}
	return k.Tenant + "/" + k.Name
}

// Twice returns Errors for the objects that are in the list more than once; nil: there are none.
func Twice(objects []Object) error {
	var errs Errors
	first := make(map[Key]Object, len(objects))
	for _, o := range objects {
		if before := first[o.Key()]; before != nil {
			errs = append(errs, twice(before, o))
			continue
		}
		first[o.Key()] = o
	}
	return errs.err()
}

func twice(first, again Object) *Error {
	where := ""
	if from := first.Meta().from; from.node != nil {
		where = fmt.Sprintf(", first at %s:%d", from.file, from.node.Line)
	}
	e := &Error{Key: again.Key(), Text: fmt.Sprintf("is given twice%s: delete one, or give it another name", where)}
	again.Meta().from.locate(e)
	return e
}

// InUse is the error for a NIC that is not deleted because programs use it.
type InUse struct {
	NIC Key
	By  []string // "ib_send_bw (pid 12, uid 1000)", each
}

func (e *InUse) Error() string {
	const most = 5
	by, more := e.By, ""
	if len(by) > most {
		by, more = by[:most], fmt.Sprintf(" and %d more", len(e.By)-most)
	}
	return fmt.Sprintf("%v is in use by %s%s: end that first, or use --force", e.NIC, strings.Join(by, ", "), more)
}
