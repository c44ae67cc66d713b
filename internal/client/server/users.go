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

// Doors are opened and closed while the server runs. Every conversation at a door is a guest
// there, as long as it may touch the NIC behind it:
//
//	open ── closed: nobody new ──▶ closing ── the last guest has left ──▶ gone
//
// The memory of a process that lives on is no guest: the server looks after it (bury).

// A Guest is somebody who uses a NIC.
type User struct {
	Program  string
	Pid, UID int
	Since    time.Time
	// Container is that which it is in, as far as its control group tells; "" if it does not, or
	// nobody asked.
	Container string
	process   bool   // a program, and not one of its devices, or a tool
	device    bool   // one of a program's devices, or of its event channels
	workload  uint64 // that it is part of; 0: not known, or nobody asked
	// who was admitted; nil: nobody, a program's devices come with the program.
	who *credentials.Caller
}

// String says who it is, for people.
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

// InUse is the error for a NIC that cannot go because programs use it.
type InUse struct {
	NIC string
	By  []User // oldest first
}

func (e *InUse) Error() string {
	return fmt.Sprintf("NIC %s is in use by %s", e.NIC, strings.Join(e.Users(), ", "))
}

// Users names who uses it, each by itself.
func (e *InUse) Users() (out []string) {
	for _, g := range e.By {
		out = append(out, g.String())
	}
	return out
}

// Unwrap is the errno.
func (e *InUse) Unwrap() error { return syscall.EBUSY }

// enter makes a conversation a guest, until leave. asked: it is one that the door admits.
func (d *listener) enter(c *protocol.Conn, who *credentials.Caller, asked bool) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.closed {
		return refusal(syscall.ENODEV, "the NIC has been removed")
	}
	g := &User{Program: who.Program, Pid: who.Pid, UID: who.UID, Since: time.Now()}
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

// left is leave, but for a NIC that is attached to a workload: it reports whether that has no program
// any more.
func (d *listener) left(c *protocol.Conn) (idle bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	g, ok := d.users[c]
	if !ok {
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

// shut lets nobody in any more, and ends the conversations.
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

// shutAll shuts doors together. If programs are at one of them it shuts none, unless force, and
// returns who they are, by door.
func shutAll(doors []*listener, force bool) map[*listener][]User {
	for _, d := range doors {
		d.mu.Lock()
		defer d.mu.Unlock()
	}
	used := make(map[*listener][]User)
	for _, d := range doors {
		if list := d.programsLocked(); len(list) > 0 && !force {
			used[d] = list
		}
	}
	if len(used) > 0 {
		return used
	}
	for _, d := range doors {
		d.shutLocked()
	}
	return nil
}

// users are the programs at the door, oldest first.
func (d *listener) programs() []User {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.programsLocked()
}

// usersLocked is users with mu held.
func (d *listener) programsLocked() (out []User) {
	for _, g := range d.users {
		if g.process {
			out = append(out, *g)
		}
	}
	slices.SortFunc(out, func(a, b User) int { return a.Since.Compare(b.Since) })
	return out
}

// account implements entrance.
func (d *listener) account(who *credentials.Caller) *budget.Account {
	if d.Account != nil {
		return d.Account.User(who.UID)
	}
	return d.srv.admission.account(who)
}

// admits says why who may not use the NIC.
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

// OpenDoor opens one more door. The server may be running.
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

// Recheck ends the programs and tools at a NIC's door that it would not admit any more.
func (s *Server) Recheck(n *registry.NIC) {
	d := s.listeners.of(n)
	if d == nil || d.Admit == nil {
		return
	}
	// Who enters later is asked later. Whoever leaves meanwhile is closed once more, which does
	// nothing.
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

// CloseDoors closes the doors of NICs, and returns when nobody has them open any more, or when ctx
// ends, with the NICs that somebody still has. While programs use one of them all doors stay open,
// and the error for that one is an *InUse, unless force: then the programs' devices are gone, as if
// pulled out.
func (s *Server) CloseListeners(ctx context.Context, nics []*registry.NIC, force bool) map[*registry.NIC]error {
	doors := s.listeners.ofAll(nics)
	errs := make(map[*registry.NIC]error)
	for d, by := range shutAll(doors, force) {
		errs[d.NIC] = &InUse{NIC: d.NIC.Name, By: by}
	}
	if len(errs) > 0 {
		return errs
	}
	for _, d := range doors {
		d.socket.Close()
	}
	gone := make(map[*listener]bool)
	for _, d := range doors {
		select {
		case <-d.empty:
		case <-ctx.Done():
		}
		select {
		case <-d.empty: // perhaps both
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
