package server

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"syscall"
	"time"

	"vrdma.dev/vrdma/internal/budget"
	"vrdma.dev/vrdma/internal/client/credentials"
	"vrdma.dev/vrdma/internal/client/protocol"
	"vrdma.dev/vrdma/internal/device/registry"
)

// Listeners are opened and closed while the server runs. Every connection at a listener is a user of its NIC, as long
// as it may touch the NIC:
//
//	open ── closed: no new users ──▶ closing ── the last user has left ──▶ gone
//
// The memory of a process that lives on after its connection is no user: awaitRelease takes care of it.

// A User is a connection that uses a NIC.
type User struct {
	Program  string
	Pid, UID int
	Since    time.Time
	// Container is its container, if its control group tells and the listener is Exclusive; else "".
	Container string
	process   bool                // a program's PROCESS connection, neither a device nor a tool
	device    bool                // a device or an event channel of a program
	netlink   *credentials.Caller // the owner of a NETLINK_RDMA socket; nil: it is none
	away      bool                // the program has let go of the daemon: it stays a user when its connection ends
	workload  uint64              // its workload; 0: not known, or the listener is not Exclusive
	client    ClientEnd
	// who is the caller that Admit admitted. It is nil for a program's devices, which are admitted with the program.
	who *credentials.Caller
}

// String describes the user for messages.
func (g *User) String() string {
	program := g.Program
	if program == "" {
		program = "?"
	}
	if g.Container != "" {
		program = fmt.Sprintf("container %s: %s", g.Container, program)
	}
	return fmt.Sprintf("%s (pid %d, uid %d, for %v)", program, g.Pid, g.UID, time.Since(g.Since).Round(time.Second))
}

// InUse is the error for a NIC that cannot be removed because programs use it.
type InUse struct {
	NIC string
	By  []User // oldest first
}

func (e *InUse) Error() string {
	return fmt.Sprintf("NIC %s is in use by %s", e.NIC, strings.Join(e.Users(), ", "))
}

// Users describes each user.
func (e *InUse) Users() (out []string) {
	for _, g := range e.By {
		out = append(out, g.String())
	}
	return out
}

// Unwrap is the errno.
func (e *InUse) Unwrap() error { return syscall.EBUSY }

// enter makes a connection a user, until leave. asked: Admit has to admit it.
func (d *listener) enter(c *protocol.Conn, client ClientEnd, who *credentials.Caller, asked bool) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.closed {
		return refusal(syscall.ENODEV, "the NIC has been removed")
	}
	g := &User{Program: who.Program, Pid: who.Pid, UID: who.UID, Since: time.Now(), client: client}
	if asked {
		g.who = who
	} else {
		g.device = true
	}
	d.users[c] = g
	return nil
}

// leave undoes enter. It may be called again.
func (d *listener) leave(c *protocol.Conn) {
	if d.left(c) {
		d.detach()
	}
}

// left removes a user. It reports whether the NIC is attached to a workload that has no program any more.
func (d *listener) left(c *protocol.Conn) (idle bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	g, ok := d.users[c]
	if !ok || g.away {
		return false
	}
	if g.process && d.Programs != nil {
		d.Programs.Add(-1)
	}
	delete(d.users, c)
	if d.closed && len(d.users) == 0 {
		close(d.empty)
	}
	return d.attached != 0 && !d.usedLocked(nil)
}

// shut refuses new users and closes the connections of the others.
func (d *listener) shut() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.shutLocked()
}

// shutLocked is shut with mu held.
func (d *listener) shutLocked() {
	if !d.closed {
		d.closed = true
		close(d.gone)
		if len(d.users) == 0 {
			close(d.empty)
		}
	}
	for c := range d.users {
		c.Close()
	}
}

// shutAll shuts listeners together. If programs use one of them it shuts none, unless force is set, and returns the
// programs by listener.
func shutAll(list []*listener, force bool) map[*listener][]User {
	for _, d := range list {
		d.mu.Lock()
		defer d.mu.Unlock()
	}
	used := make(map[*listener][]User)
	for _, d := range list {
		if list := d.programsLocked(); len(list) > 0 && !force {
			used[d] = list
		}
	}
	if len(used) > 0 {
		return used
	}
	for _, d := range list {
		d.shutLocked()
	}
	return nil
}

// programs are the programs at the listener, oldest first.
func (d *listener) programs() []User {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.programsLocked()
}

// programsLocked is programs with mu held.
func (d *listener) programsLocked() (out []User) {
	for _, g := range d.users {
		if g.process {
			out = append(out, *g)
		}
	}
	slices.SortFunc(out, func(a, b User) int { return a.Since.Compare(b.Since) })
	return out
}

// account implements endpoint.
func (d *listener) account(who *credentials.Caller) *budget.Account {
	if d.Account != nil {
		return d.Account.User(who.UID)
	}
	return d.srv.admission.account(who)
}

// admits returns why a caller may not use the NIC.
func (d *listener) admits(c *protocol.Conn, who *credentials.Caller) error {
	if d.Admit == nil || who.Owner {
		return nil
	}
	err := d.Admit(who, c)
	if err == nil {
		return nil
	}
	d.srv.log.Warn("a process may not use a NIC", "nic", d.NIC.Name, "pid", who.Pid, "uid", who.UID, "program", who.Program, "why", err)
	d.srv.admission.refused(d.NIC, who, err)
	return refusal(syscall.EACCES, "NIC %s is not for you: %v", d.NIC.Name, err)
}

// OpenListener opens one more listener. The server may be running.
func (s *Server) OpenListener(d Listener) error {
	opened, err := s.openListener(d)
	if err != nil {
		return err
	}
	if err := opened.writeTree(s.desk); err != nil {
		opened.close()
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		opened.close()
		return errors.New("the daemon is stopping")
	}
	s.listeners.add(opened)
	if s.serving {
		s.acceptAt(opened)
	}
	return nil
}

// Users are the programs that use a NIC, oldest first.
func (s *Server) Users(n *registry.NIC) []User {
	if d := s.listeners.of(n); d != nil {
		return d.programs()
	}
	return nil
}

// Recheck disconnects the programs and tools that a NIC's listener would not admit any more.
func (s *Server) Recheck(n *registry.NIC) {
	d := s.listeners.of(n)
	if d == nil || d.Admit == nil {
		return
	}
	// A user that enters later is checked when it enters. Closing a connection that has ended does nothing.
	d.mu.Lock()
	there := make(map[*protocol.Conn]credentials.Caller, len(d.users))
	for c, g := range d.users {
		if g.who != nil {
			there[c] = *g.who
		}
	}
	d.mu.Unlock()
	for c, who := range there {
		if d.admits(c, &who) != nil {
			c.Close()
		}
	}
}

// CloseListeners closes the listeners of NICs, and returns when all their users have left, or when ctx ends, with the
// NICs that still have users. While programs use one of the NICs all listeners stay open, and the error for that NIC is
// an *InUse, unless force is set: then the programs' devices are removed.
func (s *Server) CloseListeners(ctx context.Context, nics []*registry.NIC, force bool) map[*registry.NIC]error {
	list := s.listeners.ofAll(nics)
	errs := make(map[*registry.NIC]error)
	for d, by := range shutAll(list, force) {
		errs[d.NIC] = &InUse{NIC: d.NIC.Name, By: by}
	}
	if len(errs) > 0 {
		return errs
	}
	for _, d := range list {
		d.socket.Close()
	}
	gone := make(map[*listener]bool)
	for _, d := range list {
		select {
		case <-d.empty:
		case <-ctx.Done():
		}
		select {
		case <-d.empty: // both may be ready
			gone[d] = true
		default:
			errs[d.NIC] = fmt.Errorf("NIC %s: some sessions did not end: %w", d.NIC.Name, ctx.Err())
		}
	}
	s.listeners.remove(gone)
	for d := range gone {
		if err := d.close(); err != nil {
			s.log.Warn("something is left of a device tree", "nic", d.NIC.Name, "error", err)
		}
	}
	return errs
}
