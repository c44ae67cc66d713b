package control

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"syscall"

	"vrdma.dev/vrdma/internal/client/protocol"
	"vrdma.dev/vrdma/internal/events"
	"vrdma.dev/vrdma/internal/printable"
	"vrdma.dev/vrdma/internal/tenancy/tenant"
)

// Container engines call hooks and plugins, which tell the daemon to which container a NIC is bound, the container's
// name, and warnings about it. They have the operator's rights, because the operator has configured the engine.

// A Binding binds a NIC to a container.
type Binding struct {
	NIC tenant.Key `json:"nic,omitzero"`
	// Cookie is the kernel's cookie of the container's network namespace. Namespace is a path to it, valid while the
	// container exists.
	Cookie    uint64 `json:"cookie,omitempty"`
	Namespace string `json:"namespace,omitempty"`
	// Container, Interface and Network are the engine's names.
	Container string `json:"container,omitempty"`
	Interface string `json:"interface,omitempty"`
	Network   string `json:"network,omitempty"`
	// Name is for messages; "": Container.
	Name string `json:"name,omitempty"`
	// Plug: the NIC also becomes an interface of the container, if its network has interfaces. It is called Interface,
	// or if that is empty vrdma0, or the next free name.
	Plug bool `json:"plug,omitempty"`
	// Ends: the binding ends with the container, and none of its programs has the NIC any longer.
	Ends bool `json:"ends,omitempty"`
}

// A Container is what a hook reports of a new container.
type Container struct {
	NIC    tenant.Key `json:"nic,omitzero"` // zero: the default NIC
	Cookie uint64     `json:"cookie,omitempty"`
	ID     string     `json:"id"`
	Name   string     `json:"name,omitempty"` // for messages; "": ID
	// Warnings are what prevents its programs from using the NIC, one each.
	Warnings []string `json:"warnings,omitempty"`
	// User is the user of its first program, as the daemon's host numbers users; nil: it is not known. Groups are its groups.
	User   *int  `json:"user,omitempty"`
	Groups []int `json:"groups,omitempty"`
}

// An Interface is a NIC as an ordinary interface of a container.
type Interface struct {
	Name      string         `json:"name,omitempty"` // "": there is none
	MAC       string         `json:"mac,omitempty"`
	MTU       int            `json:"mtu,omitempty"`
	Addresses []netip.Prefix `json:"addresses,omitempty"`
	// Missing is why there is no interface, although there should be one.
	Missing string `json:"missing,omitempty"`
}

// Workloads are the containers and pods that have NICs.
type Workloads interface {
	Bind(b Binding) error
	// Plug makes a NIC that was bound an interface of the container.
	Plug(b Binding) (Interface, error)
	// Unbind removes and returns the bindings that match, of one container or network namespace: fields that are not
	// empty must be equal.
	Unbind(b Binding) []Binding
	Bindings() []Binding
	// MayOpen returns why a user with these groups may not open a NIC.
	MayOpen(k tenant.Key, uid int, gids []int) error
	// Name sets the name of a workload.
	Name(cookie uint64, name string)
}

const (
	mostBindings = 10000
	mostText     = 4096 // of what an engine calls something
	mostWarnings = 20
)

func (b *Binding) check() error {
	for _, s := range []string{b.Namespace, b.Container, b.Interface, b.Network, b.Name} {
		if len(s) > mostText {
			return fmt.Errorf("%.40q… is longer than %d bytes", s, mostText)
		}
	}
	return nil
}

// Matches reports whether b, as a pattern, matches a binding.
func (b *Binding) Matches(o *Binding) bool {
	same := func(want, have string) bool { return want == "" || want == have }
	return (b.NIC == tenant.Key{} || b.NIC == o.NIC) && (b.Cookie == 0 || b.Cookie == o.Cookie) &&
		same(b.Namespace, o.Namespace) && same(b.Container, o.Container) && same(b.Interface, o.Interface) && same(b.Network, o.Network)
}

// workloads serves a request of an engine.
func (t *conversation) workloads(req *Request) error {
	w := t.p.cfg.Workloads
	if !t.who.Operator {
		return denied("only the operator may say for which containers NICs are, at the control socket")
	}
	if w == nil {
		return errors.New("this daemon has no workloads")
	}
	if len(req.Bindings) > mostBindings {
		return fmt.Errorf("%d bindings at once: want %d at most", len(req.Bindings), mostBindings)
	}
	for i := range req.Bindings {
		if err := req.Bindings[i].check(); err != nil {
			return err
		}
	}
	reply := new(Reply)
	switch req.Op {
	case OpBind:
		if len(req.Bindings) != 1 {
			return errors.New("bind wants one binding")
		}
		var err error
		if reply.Interface, err = t.bind(req.Bindings[0]); err != nil {
			return err
		}
	case OpUnbind:
		if slices.ContainsFunc(req.Bindings, func(b Binding) bool { return b.Container == "" && b.Cookie == 0 }) {
			return errors.New("unbind wants a container, or the cookie of a network namespace: it would undo the bindings of all")
		}
		for _, b := range req.Bindings {
			for _, gone := range w.Unbind(b) {
				t.p.Record(events.Event{Verb: events.Unbound, Object: gone.NIC, Reason: "from " + gone.Title(), By: t.by})
			}
		}
	case OpBound:
		reply.Bindings = w.Bindings()
	case OpTell:
		var err error
		if reply.Warnings, err = t.tellContainer(req.Container); err != nil {
			return err
		}
	}
	return t.send(reply, len(reply.Bindings))
}

// bind binds a NIC that is declared and on this host.
func (t *conversation) bind(b Binding) (*Interface, error) {
	w := t.p.cfg.Workloads
	if b.Cookie == 0 {
		return nil, errors.New("bind wants the cookie of a network namespace")
	}
	if t.p.World().NIC(b.NIC.Tenant, b.NIC.Name) == nil {
		return nil, fmt.Errorf("there is no %v: declare it with vrdma apply", b.NIC)
	}
	again := slices.ContainsFunc(w.Bindings(), func(old Binding) bool { return old.NIC == b.NIC && old.Cookie == b.Cookie })
	if err := w.Bind(b); err != nil {
		return nil, t.refuseBinding(b, err)
	}
	var is *Interface
	if b.Plug {
		plugged, err := w.Plug(b)
		if used := (*tenant.InUse)(nil); errors.As(err, &used) {
			w.Unbind(b)
			return nil, t.refuseBinding(b, err)
		}
		if err != nil {
			plugged.Missing = err.Error()
			t.p.Record(events.Event{Verb: events.Warned, Object: b.NIC, Reason: b.Title() + ": " + events.OnlyRDMA + ": " + plugged.Missing, By: t.by})
		}
		is = &plugged
	}
	if !again {
		t.p.Record(events.Event{Verb: events.Bound, Object: b.NIC, Reason: "to " + b.Title(), By: t.by})
	}
	return is, nil
}

// refuseBinding records and returns why a container cannot have a NIC.
func (t *conversation) refuseBinding(b Binding, err error) error {
	t.p.Record(events.Event{Verb: events.Refused, Object: b.NIC, Reason: b.Title() + ": " + err.Error(), By: t.by})
	out := errorOf(err)
	r, used := (*protocol.Refusal)(nil), (*tenant.InUse)(nil)
	out.InUse = errors.As(err, &used) || errors.As(err, &r) && r.Errno == syscall.EBUSY
	return out
}

// Title names the container in messages.
func (b *Binding) Title() string {
	name := b.Name
	if name == "" {
		name = b.Container
	}
	if name == "" {
		return "a network namespace"
	}
	return "container " + printable.Text(name)
}

// tellContainer stores a hook's report, and returns what the hook does not know.
func (t *conversation) tellContainer(c *Container) (more []string, err error) {
	if c == nil || len(c.ID) > mostText || len(c.Name) > mostText || len(c.Warnings) > mostWarnings {
		return nil, fmt.Errorf("tell wants a container, with names of %d bytes and %d warnings at most", mostText, mostWarnings)
	}
	name := c.Name
	if name == "" {
		name = c.ID
	}
	t.p.cfg.Workloads.Name(c.Cookie, printable.Text(name))
	if c.User != nil && c.NIC != (tenant.Key{}) {
		if err := t.p.cfg.Workloads.MayOpen(c.NIC, *c.User, c.Groups); err != nil {
			more = append(more, err.Error())
			c.Warnings = append(c.Warnings, err.Error())
		}
	}
	if len(c.Warnings) > 0 {
		t.p.Record(events.Event{Verb: events.Warned, Object: c.NIC, Reason: fmt.Sprintf("container %s: %.*s", name, mostText, strings.Join(c.Warnings, "; ")), By: t.by})
	}
	return more, nil
}

// Bind tells the daemon at socket to which container a NIC is bound.
func Bind(socket string, b Binding) error {
	_, err := once(socket, &Request{Op: OpBind, Bindings: []Binding{b}})
	return err
}

// Plug is Bind for a NIC that also becomes an interface of the container. An Interface without a name says what is
// missing, or that the network has no interfaces.
func Plug(socket string, b Binding) (is Interface, err error) {
	b.Plug = true
	reply, err := once(socket, &Request{Op: OpBind, Bindings: []Binding{b}})
	if err == nil && reply.Interface != nil {
		is = *reply.Interface
	}
	return is, err
}

// Unbind removes the bindings that match a pattern of list.
func Unbind(socket string, list ...Binding) error {
	_, err := once(socket, &Request{Op: OpUnbind, Bindings: list})
	return err
}

// Bindings are all bindings of the daemon at socket.
func Bindings(socket string) ([]Binding, error) {
	r, err := once(socket, &Request{Op: OpBound})
	if err != nil {
		return nil, err
	}
	return r.Bindings, nil
}

// Tell reports a new container to the daemon, and returns what the daemon warns about.
func Tell(socket string, c Container) ([]string, error) {
	r, err := once(socket, &Request{Op: OpTell, Container: &c})
	if err != nil {
		return nil, err
	}
	return r.Warnings, nil
}
