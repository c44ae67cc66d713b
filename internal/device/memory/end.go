package memory

import "io"

// The end of a process is not the end of its memfd: another process may have been given it,
// and pages that the daemon's copies made are charged to the daemon's control group for as
// long as they exist. So they are taken out once the address space is dead. Before, they are
// the program's heap, and stay charged to its user.

// noAddress lies in no process's memory: to read there takes no page.
const noAddress = 1 << 62

// Reachable reports whether we can tell if the process's address space is dead.
func (s *Space) Reachable() bool { return s.foreign != nil }

// Dead reports whether the process's address space is known to exist no more. Another process
// may share the address space and outlive the process: a child of vfork. Dead may block for long
// while another thread waits for a page of the process.
func (s *Space) Dead() bool {
	look := func() error { // it may outlive the call
		var b [1]byte
		_, err := s.foreign.ReadAt(b[:], noAddress)
		return err
	}
	if s.Aside == nil {
		return look() == io.EOF
	}
	return s.Aside(look) == io.EOF // a dead one reads as empty; of one that lives it is EIO
}

// Empty reports whether the space has neither regions nor pages, so that closing it loses nothing. It updates the
// charge for pages.
func (s *Space) Empty() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.recount()
	return s.mapped == 0 && s.charges.pages == 0
}

// Clear takes every page out of a process's memfd. Its address space is dead. It may take
// long.
func (s *Space) Clear() error {
	if m, ok := s.backing.(*Memfd); ok {
		return m.Clear()
	}
	return nil
}
