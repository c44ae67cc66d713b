package control

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"vrdma.dev/vrdma/internal/client/protocol"
	"vrdma.dev/vrdma/internal/tenancy/tenant"
)

// ask sends a request to the daemon whose program socket is socket, at the first of its sockets that the caller may use
// (protocol.DialObjects). It returns the first reply.
func ask(socket string, req *Request) (*protocol.Session, *Reply, error) {
	s, err := protocol.DialObjects(socket)
	if err != nil {
		return nil, nil, err
	}
	if err := s.SendJSON(req); err != nil {
		s.Close()
		return nil, nil, fmt.Errorf("the daemon closed the connection without an answer: %w", err)
	}
	reply := new(Reply)
	if err = s.ReceiveJSON(reply); err == nil && reply.Error != nil {
		err = reply.Error
	}
	if err != nil {
		s.Close()
		return nil, nil, err
	}
	return s, reply, nil
}

// once is ask for a request with one reply.
func once(socket string, req *Request) (*Reply, error) {
	s, reply, err := ask(socket, req)
	if err != nil {
		return nil, err
	}
	s.Close()
	return reply, nil
}

// Parse reads files. The error is a tenant.Errors with everything that is wrong with the files by themselves.
func Parse(files []File) (objects []tenant.Object, err error) {
	var errs tenant.Errors
	for _, f := range files {
		some, err := tenant.Parse(f.Name, []byte(f.Text))
		if wrong := (tenant.Errors)(nil); errors.As(err, &wrong) {
			errs = append(errs, wrong...)
		}
		objects = append(objects, some...)
	}
	if len(errs) > 0 {
		return nil, errs
	}
	return objects, nil
}

// send is once for a request with the objects of files. Errors have file and line.
func send(socket string, req *Request, files []File) (*Reply, error) {
	objects, err := Parse(files)
	if wrong := (tenant.Errors)(nil); errors.As(err, &wrong) {
		return nil, errorOf(append(wrong, alsoWrong(socket, req, files, wrong)...))
	}
	if err == nil {
		err = tenant.Twice(objects) // the daemon could not distinguish them
	}
	if err != nil {
		return nil, errorOf(err)
	}
	req.Objects = objects
	reply, err := once(socket, req)
	if e := (*Error)(nil); errors.As(err, &e) {
		err = e.locate(objects)
	}
	return reply, err
}

// alsoWrong returns what the daemon finds wrong with the objects that could be parsed, so that all errors of a file come together.
// It leaves out errors that may follow from those that are known.
func alsoWrong(socket string, req *Request, files []File, known tenant.Errors) (out tenant.Errors) {
	var rest []tenant.Object
	for _, f := range files {
		some, _ := tenant.Parse(f.Name, []byte(f.Text)) // the errors are known
		rest = append(rest, some...)
	}
	bad := make(map[tenant.Key]bool)
	for _, e := range known {
		if !e.Key.Valid() {
			return nil // others may refer to it
		}
		bad[e.Key] = true
	}
	rest = slices.DeleteFunc(rest, func(o tenant.Object) bool { return bad[o.Key()] })
	if req.Op != OpApply || len(rest) == 0 || tenant.Twice(rest) != nil {
		return nil
	}
	_, err := once(socket, &Request{Op: OpApply, DryRun: true, Objects: rest})
	e := (*Error)(nil)
	if !errors.As(err, &e) || !errors.As(tenant.Locate(e.Errors, rest), &out) {
		return nil
	}
	return slices.DeleteFunc(out, func(e *tenant.Error) bool {
		for k := range bad {
			if strings.Contains(e.Text, "/"+k.Name) || strings.Contains(e.Text, `"`+k.Name+`"`) {
				return true
			}
		}
		return false
	})
}

// locate adds file and line to the daemon's errors.
func (e *Error) locate(objects []tenant.Object) error {
	found := *e
	if errors.As(tenant.Locate(e.Errors, objects), &found.Errors) {
		lines := errorOf(found.Errors).Problems
		found.Problems = append(lines, e.Problems[min(len(lines), len(e.Problems)):]...)
	}
	return &found
}

// Apply applies files, all of them or none. The reply has Results and Warnings.
func Apply(socket string, files []File, dryRun bool) (*Reply, error) {
	return send(socket, &Request{Op: OpApply, DryRun: dryRun}, files)
}

// ApplyOptions change what ApplyWith does.
type ApplyOptions struct {
	DryRun bool
	Force  bool // also remove NICs in use from a host
	// Prune: also delete the networks, NICs and policies of the files' tenants that the files do not have.
	Prune bool
	// Changes: the Results have the objects before and after.
	Changes bool
}

// ApplyWith is Apply with options.
func ApplyWith(socket string, files []File, o ApplyOptions) (*Reply, error) {
	return send(socket, &Request{Op: OpApply, DryRun: o.DryRun, Force: o.Force, Prune: o.Prune, Changes: o.Changes}, files)
}

// ApplyForced is Apply that also removes NICs in use from a host.
func ApplyForced(socket string, files []File, dryRun bool) (*Reply, error) {
	return send(socket, &Request{Op: OpApply, DryRun: dryRun, Force: true}, files)
}

// Delete deletes objects, all of them or none. The error for an object in use is an *Error with InUse that names its
// users, unless force is set.
func Delete(socket string, keys []tenant.Key, force, dryRun bool) (*Reply, error) {
	return once(socket, &Request{Op: OpDelete, Keys: keys, Force: force, DryRun: dryRun})
}

// Get reads objects; the reply has Items and their Revision. An empty result is no error.
func Get(socket string, which Selection) (*Reply, error) {
	return once(socket, &Request{Op: OpGet, Select: which})
}

// Describe reads one object with its status, its last events and its users.
func Describe(socket string, key tenant.Key) (*Reply, error) {
	return once(socket, &Request{Op: OpDescribe, Keys: []tenant.Key{key}})
}

// TestPolicy evaluates the rules, with files applied for this query only. There is an answer for each range of services
// that the rules distinguish.
func TestPolicy(socket string, q PolicyQuestion, files []File) ([]PolicyAnswer, error) {
	reply, err := send(socket, &Request{Op: OpPolicyTest, Policy: &q}, files)
	if err != nil {
		return nil, err
	}
	if len(reply.Policy) == 0 {
		return nil, errors.New("the daemon's answer is empty")
	}
	return reply.Policy, nil
}

// Export reads all declared objects, as one YAML file.
func Export(socket string) (string, error) {
	reply, err := once(socket, &Request{Op: OpExport})
	if err != nil {
		return "", err
	}
	return reply.Text, nil
}

// Import applies the output of Export; with replace, objects that it does not name are deleted.
func Import(socket string, file File, replace, dryRun bool) (*Reply, error) {
	return send(socket, &Request{Op: OpImport, Replace: replace, DryRun: dryRun}, []File{file})
}

// A Stream delivers changes or events as they come.
type Stream struct{ s *protocol.Session }

// Watch delivers all objects, then (Reply.Synced) every change.
func Watch(socket string, which Selection) (*Stream, error) {
	return stream(socket, &Request{Op: OpWatch, Select: which})
}

// Events delivers the last events (0: all that are kept), and with follow those to come.
func Events(socket string, which Selection, last int, follow bool) (*Stream, error) {
	return stream(socket, &Request{Op: OpEvents, Select: which, Last: last, Follow: follow})
}

func stream(socket string, req *Request) (*Stream, error) {
	s, _, err := ask(socket, req)
	if err != nil {
		return nil, err
	}
	return &Stream{s}, nil
}

// Next waits for the next reply; io.EOF means that there are no more.
func (s *Stream) Next() (*Reply, error) {
	reply := new(Reply)
	if err := s.s.ReceiveJSON(reply); err != nil {
		return nil, err
	}
	if reply.Error != nil {
		return nil, reply.Error
	}
	return reply, nil
}

// Close ends the stream; a Next that waits then fails.
func (s *Stream) Close() error { return s.s.Close() }
