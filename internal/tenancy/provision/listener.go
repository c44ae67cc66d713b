package provision

import (
	"errors"
	"fmt"
	"slices"
	"sync/atomic"
	"syscall"

	"vrdma.dev/vrdma/internal/client/credentials"
	"vrdma.dev/vrdma/internal/client/protocol"
	"vrdma.dev/vrdma/internal/client/server"
	"vrdma.dev/vrdma/internal/tenancy/tenant"
)

// openness has the users that may open a NIC. Any goroutine may use it.
type openness struct{ now atomic.Pointer[tenant.Who] }

// set replaces the rule, and reports whether it was another one.
func (o *openness) set(w tenant.Who) bool {
	old := o.now.Swap(&w)
	return old != nil && !(slices.Equal(old.UIDs, w.UIDs) && slices.Equal(old.GIDs, w.GIDs) && old.Container == w.Container && old.Namespace == w.Namespace)
}

// anybody reports whether only the modes of the socket decide.
func (o *openness) anybody() bool {
	w := o.now.Load()
	return len(w.UIDs)+len(w.GIDs) == 0 && w.Container == "" && w.Namespace == ""
}

// admit returns why a caller may not open the NIC. The daemon's owner is always admitted.
func (o *openness) admit(who *credentials.Caller, conn syscall.Conn) error {
	w := o.now.Load()
	if len(w.UIDs)+len(w.GIDs) > 0 && !slices.Contains(w.UIDs, who.UID) && !who.InGroup(conn, w.GIDs) {
		return fmt.Errorf("user %d may not open it (spec.open)", who.UID)
	}
	if w.Container != "" {
		group, err := who.ControlGroup(conn)
		if err != nil {
			return fmt.Errorf("your control group is unknown: %w", err)
		}
		if !credentials.Within(group, w.Container) {
			return fmt.Errorf("the control group %s may not open it (spec.open.container)", group)
		}
	}
	if w.Namespace != "" {
		// A tenant's administrators may name any path. The error does not tell whether the file exists.
		want, err := credentials.NamespaceAt(w.Namespace)
		if got, gerr := who.NetworkNamespace(conn); err != nil || gerr != nil || got != want {
			return errors.New("only the network namespace in spec.open.namespace may open it, if it is one")
		}
	}
	return nil
}

// MayOpen returns why a user with these groups may not open a NIC; nil: it may, or the NIC is not here. Control groups
// and namespaces in spec.open are not checked. It may be called at any time.
func (r *Provisioner) MayOpen(k tenant.Key, uid int, gids []int) error {
	s := r.find(k)
	if s == nil || uid == r.cfg.Owner {
		return nil
	}
	w := s.open.now.Load()
	in := func(gid int) bool { return slices.Contains(w.GIDs, gid) }
	switch {
	case len(w.UIDs)+len(w.GIDs) > 0 && !slices.Contains(w.UIDs, uid) && !slices.ContainsFunc(gids, in):
		return fmt.Errorf("user %d may not open %v: add it to spec.open.uids of the NIC", uid, k)
	case s.open.anybody() && r.cfg.Mode&0o006 != 0o006:
		return fmt.Errorf("user %d may not open %v, which only the daemon's user may: name it in spec.open of the NIC, open: {uids: [%d]}", uid, k, uid)
	}
	return nil
}

// listen makes the NIC's directory and opens its listener.
func (r *Provisioner) listen(s *hostedNIC) (err error) {
	defer func() {
		if err != nil {
			r.directories.discard(s)
		}
	}()
	mode, dirMode := r.modes(s)
	if err := r.directories.makeDirectories(s, dirMode); err != nil {
		return err
	}
	if err := r.directories.install(s.place); err != nil {
		return err
	}
	if w := s.open.now.Load(); !s.open.anybody() && len(w.UIDs)+len(w.GIDs) == 0 {
		r.directories.warnUnreachable()
	}
	a := s.account
	var claim func() error
	if r.cfg.Placement != nil {
		claim = func() error { return r.cfg.Placement.Claim(s.key) }
	}
	var attach func(syscall.Conn) error
	var detach func()
	if s.namespace != nil {
		attach, detach = s.namespace.attach, s.namespace.detach
	} else if s.ethernet != nil {
		attach, detach = func(conn syscall.Conn) error { s.ethernet.tapFor(conn); return nil }, func() {} // the interface ends with the container
	}
	var bound []server.Binding
	if r.cfg.Workloads != nil {
		bound = r.cfg.Workloads.Bound(s.key)
	}
	var card func() (protocol.GuestCard, error)
	if s.ethernet != nil {
		card = s.ethernet.card
	}
	return r.listeners.OpenListener(server.Listener{
		Claim: claim, Attach: attach, Detach: detach, OpenGuest: card,
		Socket: s.place.Socket, NIC: s.nic, DirMode: dirMode, SocketMode: mode, Admit: s.open.admit, Account: a.budget,
		Commands: a.commands, Requests: a.requests, Rests: true, Exclusive: true, Programs: &s.programs, Bound: bound,
	})
}
