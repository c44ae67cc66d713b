package control

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"

	"vrdma.dev/vrdma/internal/events"
	"vrdma.dev/vrdma/internal/tenancy/store"
	"vrdma.dev/vrdma/internal/tenancy/tenant"
)

// fakeWorkloads remember.
type fakeWorkloads struct {
	mu    sync.Mutex
	bound []Binding
	names map[uint64]string
}

func (f *fakeWorkloads) Bind(b Binding) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, old := range f.bound {
		if old.NIC == b.NIC && old.Cookie != b.Cookie {
			return fmt.Errorf("%v is bound to %s", b.NIC, old.Title())
		}
	}
	f.bound = append(slices.DeleteFunc(f.bound, func(old Binding) bool { return old.NIC == b.NIC }), b)
	return nil
}

func (f *fakeWorkloads) Plug(b Binding) (Interface, error) {
	if b.Interface == "" {
		return Interface{}, errors.New("nobody may")
	}
	return Interface{Name: b.Interface}, nil
}

func (f *fakeWorkloads) Unbind(b Binding) (gone []Binding) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.bound = slices.DeleteFunc(f.bound, func(old Binding) bool {
		if b.Matches(&old) {
			gone = append(gone, old)
			return true
		}
		return false
	})
	return gone
}

func (f *fakeWorkloads) Bindings() []Binding {
	f.mu.Lock()
	defer f.mu.Unlock()
	return slices.Clone(f.bound)
}

func (f *fakeWorkloads) MayOpen(tenant.Key, int, []int) error { return nil }

func (f *fakeWorkloads) Name(cookie uint64, name string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.names[cookie] = name
}

func (f *fakeWorkloads) name(cookie uint64) string {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.names[cookie]
}

// Engines report a NIC's container and what they found out about it. Only the operator's engines may.
func TestWorkloads(t *testing.T) {
	w := &fakeWorkloads{names: make(map[uint64]string)}
	h := newHost(t, &store.Memory{})
	h.plane.cfg.Workloads = w
	op, red := h.operator(), h.user(1001)
	mustApply(t, op, file(twoAdministrators))
	mustApply(t, op, nicFile("red", "a"))
	a := Binding{NIC: nicKey("red", "a"), Cookie: 7, Container: "c1", Interface: "eth0", Network: "net", Name: "team/pod"}
	for range 2 {
		if err := Bind(op, a); err != nil {
			t.Fatal(err)
		}
	}
	if list, err := Bindings(op); err != nil || len(list) != 1 || list[0] != a {
		t.Errorf("bound: %v, %v", list, err)
	}
	other := a
	other.Cookie = 8
	if err := Bind(op, other); err == nil || !strings.Contains(err.Error(), "is bound to container team/pod") {
		t.Errorf("another container: %v", err)
	}
	for what, err := range map[string]error{
		"unbind of all": Unbind(op, Binding{}), "unbind of all of a network": Unbind(op, Binding{Cookie: 7}, Binding{Network: "net"}),
		"no cookie": Bind(op, Binding{NIC: a.NIC}), "no such NIC": Bind(op, Binding{NIC: nicKey("red", "none"), Cookie: 1}),
		"a long name": Bind(op, Binding{NIC: a.NIC, Cookie: 7, Name: strings.Repeat("x", mostText+1)}), "nothing to tell": tell(op, Container{ID: strings.Repeat("x", mostText+1)}),
	} {
		if err == nil {
			t.Errorf("%s is fine", what)
		}
	}
	_, listed := Bindings(red)
	for what, err := range map[string]error{"bind": Bind(red, a), "unbind": Unbind(red, a), "list": listed, "tell": tell(red, Container{ID: "x"})} {
		wantDenied(t, what, err)
	}
	if err := tell(op, Container{NIC: a.NIC, Cookie: 7, ID: "c1", Name: "team/pod", Warnings: []string{"musl: no device"}}); err != nil || w.name(7) != "team/pod" {
		t.Errorf("tell: %v, %q", err, w.name(7))
	}
	for range 2 {
		if err := Unbind(op, Binding{Container: "c1", Interface: "eth0", Network: "net"}); err != nil || len(w.Bindings()) > 0 {
			t.Errorf("unbind: %v, left %v", err, w.Bindings())
		}
	}
	var verbs []events.Verb
	s, err := Events(op, Selection{Kind: a.NIC.Kind, Tenant: "red", Name: "a"}, 0, false)
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	for {
		r, err := s.Next()
		if err != nil {
			break
		}
		for _, e := range r.Events {
			verbs = append(verbs, e.Verb)
		}
	}
	if want := []events.Verb{events.Applied, events.Bound, events.Refused, events.Warned, events.Unbound}; !slices.Equal(verbs, want) {
		t.Errorf("events %v, want %v", verbs, want)
	}
}

// tell is Tell without what the daemon warns about.
func tell(socket string, c Container) error {
	_, err := Tell(socket, c)
	return err
}
