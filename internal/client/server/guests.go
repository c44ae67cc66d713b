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
type Guest struct {
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
func (g *Guest) String() string {
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
	By  []Guest // oldest first
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
func (d *door) enter(c *protocol.Conn, who *credentials.Caller, asked bool) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.closed {
		return refusal(syscall.ENODEV, "the NIC has been removed")
	}
	g := &Guest{Program: who.Program, Pid: who.Pid, UID: who.UID, Since: time.Now()}
	if asked {
		g.who = who
	} else {
		g.device = true
	}
	d.guests[c] = g
	return nil
}

// leave undoes enter. It may be called again.
func (d *door) leave(c *protocol.Conn) {
	if d.left(c) {
		d.detach()
	}
}

// left is leave, but for a NIC that is attached to a workload: it reports whether that has no program
// any more.
func (d *door) left(c *protocol.Conn) (idle bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	g, ok := d.guests[c]
	if !ok {
		return false
	}
	if g.process && d.Programs != nil {
		d.Programs.Add(-1)
	}
	delete(d.guests, c)
	if d.closed && len(d.guests) == 0 {
		close(d.empty)
	}
	return d.attached != 0 && !d.usedLocked(nil)
}

// shut lets nobody in any more, and ends the conversations.
func (d *door) shut() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.shutLocked()
}

// shutLocked is shut with mu held.
func (d *door) shutLocked() {
	if !d.closed {
		d.closed = true
		close(d.gone)
		if len(d.guests) == 0 {
			close(d.empty)
		}
	}
	for c := range d.guests {
		c.Close()
	}
}

// shutAll shuts doors together. If programs are at one of them it shuts none, unless force, and
// returns who they are, by door.
func shutAll(doors []*door, force bool) map[*door][]Guest {
	for _, d := range doors {
		d.mu.Lock()
		defer d.mu.Unlock()
	}
	used := make(map[*door][]Guest)
	for _, d := range doors {
		if list := d.usersLocked(); len(list) > 0 && !force {
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
func (d *door) users() []Guest {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.usersLocked()
}

// usersLocked is users with mu held.
func (d *door) usersLocked() (out []Guest) {
	for _, g := range d.guests {
		if g.process {
			out = append(out, *g)
		}
	}
	slices.SortFunc(out, func(a, b Guest) int { return a.Since.Compare(b.Since) })
	return out
}

// account implements entrance.
func (d *door) account(who *credentials.Caller) *budget.Account {
	if d.Account != nil {
		return d.Account.User(who.UID)
	}
	return d.srv.account(who)
}

// admits says why who may not use the NIC.
func (d *door) admits(c *protocol.Conn, who *credentials.Caller) error {
	if d.Admit == nil || who.Owner {
		return nil
	}
	err := d.Admit(who, c)
	if err == nil {
		return nil
	}
	d.srv.log.Warn("a process may not use a NIC", "nic", d.NIC.Name, "pid", who.Pid, "uid", who.UID, "program", who.Program, "why", err)
	d.srv.refused(d.NIC, who, err)
	return refusal(syscall.EACCES, "NIC %s is not for you: %v", d.NIC.Name, err)
}

// OpenDoor opens one more door. The server may be running.
func (s *Server) OpenDoor(d Door) error {
	opened, err := s.openDoor(d)
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
	s.doors = append(s.doors, opened)
	if s.serving {
		s.attend(opened)
	}
	return nil
}

// Users are the programs that use a NIC, oldest first.
func (s *Server) Users(n *registry.NIC) []Guest {
	if d := s.doorOf(n); d != nil {
		return d.users()
	}
	return nil
}

// Recheck ends the programs and tools at a NIC's door that it would not admit any more.
func (s *Server) Recheck(n *registry.NIC) {
	d := s.doorOf(n)
	if d == nil || d.Admit == nil {
		return
	}
	// Who enters later is asked later. Whoever leaves meanwhile is closed once more, which does
	// nothing.
	d.mu.Lock()
	there := make(map[*protocol.Conn]credentials.Caller, len(d.guests))
	for c, g := range d.guests {
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
func (s *Server) CloseDoors(ctx context.Context, nics []*registry.NIC, force bool) map[*registry.NIC]error {
	doors := s.doorsOf(nics)
	errs := make(map[*registry.NIC]error)
	for d, by := range shutAll(doors, force) {
		errs[d.NIC] = &InUse{NIC: d.NIC.Name, By: by}
	}
	if len(errs) > 0 {
		return errs
	}
	for _, d := range doors {
		d.listener.Close()
	}
	gone := make(map[*door]bool)
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
	s.mu.Lock()
	s.doors = slices.DeleteFunc(s.doors, func(d *door) bool { return gone[d] })
	s.mu.Unlock()
	for d := range gone {
		if err := d.close(); err != nil {
			s.log.Warn("something is left of a device tree", "nic", d.NIC.Name, "error", err)
		}
	}
	return errs
}

// doorsOf are the doors of NICs, for each that has one.
func (s *Server) doorsOf(nics []*registry.NIC) (out []*door) {
	wanted := make(map[*registry.NIC]bool, len(nics))
	for _, n := range nics {
		wanted[n] = true
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, d := range s.doors {
		if d.NIC != nil && wanted[d.NIC] {
			out = append(out, d)
		}
	}
	return out
}

func (s *Server) doorOf(n *registry.NIC) *door {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, d := range s.doors {
		if d.NIC == n {
			return d
		}
	}
	return nil
}
