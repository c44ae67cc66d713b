package server

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"vrdma.dev/vrdma/internal/client/credentials"
	"vrdma.dev/vrdma/internal/device/registry"
)

// A NIC can be bound to a workload before any program of it runs, as an engine does through CNI. Then no other workload
// can use it. Listener.Bound passes bindings from before a restart of the daemon.

// A Binding binds a NIC to a workload.
type Binding struct {
	Cookie uint64 // of the network namespace
	// Path leads to the namespace while its workload exists. It shows that a binding is stale: an engine may be killed
	// before it undoes the binding.
	Path  string
	inode string // the namespace at Path
	// Name is the workload's name for messages.
	Name string
	// Note is the caller's own data, and distinguishes bindings.
	Note any
	// Ends: the binding ends with the container, and its programs lose the NIC then, also a program that has left the
	// container.
	Ends  bool
	Since time.Time
}

// dead reports whether the workload has ended.
func (b *Binding) dead() bool {
	if b.inode == "" {
		return false // that is not known
	}
	now, err := credentials.NamespaceAt(b.Path)
	return err != nil || now != b.inode
}

// stillThere returns the bindings whose workload still exists, all of one namespace.
func stillThere(list []Binding) (out []*Binding) {
	for i := range list {
		b := list[i]
		if at, err := credentials.CookieAt(b.Path); err != nil || at != b.Cookie {
			continue // no caller would undo it
		}
		b.inode, _ = credentials.NamespaceAt(b.Path) // it existed a moment ago
		if len(out) == 0 || out[0].Cookie == b.Cookie {
			out = append(out, &b)
		}
	}
	return out
}

// Bind binds a NIC. It fails if the NIC is bound to another workload, or if programs of another workload still use it
// after a moment. Binding it again is no error.
func (s *Server) Bind(n *registry.NIC, b Binding) error {
	d := s.listeners.of(n)
	if d == nil {
		return fmt.Errorf("NIC %s is not here", n.Name)
	}
	if !d.Exclusive {
		return fmt.Errorf("NIC %s is for everybody who may open it: bind a declared one", n.Name)
	}
	b.Since = time.Now()
	b.inode, _ = credentials.NamespaceAt(b.Path)
	if at, err := credentials.CookieAt(b.Path); err == nil && at != b.Cookie {
		b.inode = "" // another namespace by now: it says nothing about the workload
	}
	wait := cmp.Or(s.cfg.handover, handover)
	for end := time.Now().Add(wait); ; time.Sleep(wait / 300) {
		holder, err := d.bind(&b)
		if err != nil || holder == "" {
			return err
		}
		if time.Now().After(end) {
			return refusal(syscall.EBUSY, "NIC %s is %s: a NIC has one workload at a time; end that one, or use another NIC", n.Name, holder)
		}
	}
}

// bind binds the NIC. If another workload has it, bind describes how and which.
func (d *listener) bind(b *Binding) (holder string, err error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.closed {
		return "", refusal(syscall.ENODEV, "the NIC has been removed")
	}
	if old := d.boundElsewhere(b.Cookie); old != nil {
		return fmt.Sprintf("bound to %s, for %v", old.Name, time.Since(old.Since).Round(time.Second)), nil
	}
	for _, g := range d.users {
		if g.process && g.workload != 0 && g.workload != b.Cookie {
			return fmt.Sprintf("in use by %v, in another network namespace", g), nil
		}
	}
	// The containers of a pod share a namespace, and each may have a binding.
	if i := slices.IndexFunc(d.bound, func(o *Binding) bool { return o.Note == b.Note }); i >= 0 {
		d.bound[i] = b
	} else {
		d.bound = append(d.bound, b)
	}
	delete(d.ended, b.Cookie)
	return "", nil
}

// Unbind removes the bindings for which gone returns true, and returns their number. Programs go on, unless the last
// binding of their namespace has Ends.
func (s *Server) Unbind(gone func(n *registry.NIC, b *Binding) bool) (count int) {
	all := s.listeners.all()
	for _, d := range all {
		d.mu.Lock()
		count += d.unbind(func(b *Binding) bool { return gone(d.NIC, b) })
		d.mu.Unlock()
	}
	return count
}

// unbind removes bindings. mu is held.
func (d *listener) unbind(gone func(*Binding) bool) (count int) {
	var last *Binding // preferably one with Ends
	d.bound = slices.DeleteFunc(d.bound, func(b *Binding) bool {
		if !gone(b) {
			return false
		}
		if last == nil || b.Ends {
			last = b
		}
		count++
		return true
	})
	if last != nil && last.Ends && len(d.bound) == 0 {
		d.endWorkload(last)
	}
	return count
}

// mostEnded bounds how many ended workloads a listener remembers.
const mostEnded = 256

// endWorkload takes the NIC from the programs of a container that has ended, for good. Usually they end with it, but
// one may have left the container. mu is held.
func (d *listener) endWorkload(b *Binding) {
	if d.ended == nil || len(d.ended) >= mostEnded {
		d.ended = make(map[uint64]string)
	}
	d.ended[b.Cookie] = b.Name
	for c, g := range d.users {
		if g.workload == b.Cookie && !g.away {
			d.srv.log.Info("a program loses a NIC, because its container is gone", "nic", d.NIC.Name, "container", b.Name, "pid", g.Pid, "program", g.Program)
			c.Close()
		}
	}
}

// Bindings calls show for each binding, and removes those whose workload has ended.
func (s *Server) Bindings(show func(b *Binding)) {
	s.Unbind(func(_ *registry.NIC, b *Binding) bool {
		if b.dead() {
			return true
		}
		show(b)
		return false
	})
}

// boundElsewhere is the binding that keeps a workload from the NIC. mu is held.
func (d *listener) boundElsewhere(workload uint64) *Binding {
	if len(d.bound) == 0 || workload == 0 || d.bound[0].Cookie == workload {
		return nil
	}
	d.unbind((*Binding).dead)
	if len(d.bound) == 0 {
		return nil
	}
	return d.bound[0]
}

// containers names the users of NICs: the workload that a NIC is bound to, else the container of a program, else the
// virtual machine that has it.
func (s *Server) containers() map[*registry.NIC]string {
	all := s.listeners.all()
	out := make(map[*registry.NIC]string)
	if s.cfg.Guests != nil {
		out = s.cfg.Guests.Guests()
	}
	for _, d := range all {
		if name := d.container(); name != "" {
			out[d.NIC] = name
		}
	}
	return out
}

func (d *listener) container() string {
	if !d.Exclusive {
		return ""
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, b := range d.bound {
		if !b.dead() {
			return strings.TrimPrefix(b.Name, "container ")
		}
	}
	for _, g := range d.users {
		if g.process && g.Container != "" {
			return g.Container
		}
	}
	return ""
}

// workloadNames are what users call workloads, by the cookies of their namespaces.
type workloadNames struct {
	mu    sync.Mutex
	of    map[uint64]string // guarded by mu
	order []uint64          // guarded by mu; oldest first
}

// mostNames bounds how many workloads are known by name.
const mostNames = 4096

// Name sets what users call the workload of a namespace: a container, a pod. A hook of the container engine knows.
func (s *Server) Name(cookie uint64, name string) {
	if cookie != 0 && name != "" {
		s.names.set(cookie, name)
	}
}

func (w *workloadNames) set(cookie uint64, name string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.of == nil {
		w.of = make(map[uint64]string)
	}
	if _, known := w.of[cookie]; !known {
		w.order = append(w.order, cookie)
		if len(w.order) > mostNames { // the oldest workload ended long ago
			delete(w.of, w.order[0])
			w.order = w.order[1:]
		}
	}
	w.of[cookie] = name
}

// get is the name of a workload; "": it has none.
func (w *workloadNames) get(cookie uint64) string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.of[cookie]
}
