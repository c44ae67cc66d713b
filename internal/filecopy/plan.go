package filecopy

import (
	"cmp"
	"errors"
	"fmt"
	"os"
	"strings"
)

// A Plan describes what to copy, and the target.
type Plan struct {
	Put   bool     // files of this host are sent
	Paths []string // of the files at the side that has them
	To    string
	Into  bool    // To is a directory
	Host  Address // the other side
}

// ParsePlan reads arguments: FILE... HOST:DIR, or HOST:FILE... DIR.
func ParsePlan(args []string) (Plan, error) {
	if len(args) < 2 {
		return Plan{}, errors.New("cp wants what to copy, and where to: vrdma cp FILE... HOST:DIR")
	}
	list := make([]Address, len(args))
	for i, a := range args {
		var err error
		if list[i], err = ParseAddress(a); err != nil {
			return Plan{}, err
		}
	}
	last := list[len(list)-1]
	p := Plan{Put: !last.Local(), To: last.Path, Into: len(list) > 2 || last.isDirectory(), Host: list[0]}
	if p.Put {
		p.Host = last
	}
	for i, a := range list[:len(list)-1] {
		switch {
		case p.Put && !a.Local():
			return Plan{}, fmt.Errorf("%s: copying from one host to another is not possible: copy it here first", args[i])
		case !p.Put && a.Local():
			return Plan{}, fmt.Errorf("%s and %s are both here: use cp", args[i], args[len(args)-1])
		case !a.Same(p.Host) && !p.Put:
			return Plan{}, fmt.Errorf("%s: all files have to be at one host", args[i])
		}
		p.Paths = append(p.Paths, a.Path)
	}
	return p, nil
}

// isDirectory reports whether the path can only be a directory's.
func (a Address) isDirectory() bool {
	return strings.HasSuffix(a.Path, "/") || a.Path == "." || a.Path == ""
}

// Check returns an error if no file to send exists. It needs no connection. The copy reports single missing files.
func (p *Plan) Check() error {
	if !p.Put {
		return nil
	}
	var missing error
	for _, path := range p.Paths {
		_, err := os.Lstat(path)
		if err == nil {
			return nil
		}
		missing = cmp.Or(missing, err)
	}
	return missing
}
