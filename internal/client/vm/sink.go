package vm

import (
	"sync"

	"vrdma.dev/vrdma/internal/client/vm/vmproto"
)

// A sink brings events to a program, through the agent: nic.EventSink, and rdmacm.Signal.
type sink struct {
	c  *conversation
	id uint32

	mu     sync.Mutex
	sent   bool    // something was: the program may not have read it
	held   bool    // events wait until a command has ended (recall.go)
	back   []event // taken back from the program, and held
	given  int     // how many of them were taken back
	closed bool
}

type event struct {
	b [16]byte
	n int
}

// mostHeld is how many events wait here for the end of a command, besides those that were taken back.
// More wait in their queue, at their user's cost.
const mostHeld = 4096

// Post implements nic.EventSink.
func (s *sink) Post(e [16]byte, n int) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return true
	}
	if s.held {
		// What was taken back is withdrawn and posted again: for that there is always room.
		if len(s.back) >= mostHeld+s.given {
			return false
		}
		s.back = append(s.back, event{e, n})
		return true
	}
	if s.c.m.link.behind() {
		return false
	}
	s.sent = true
	s.c.m.link.send(vmproto.Event, s.id, e[:n])
	return true
}

// Withdraw implements nic.EventSink.
func (s *sink) Withdraw() (e [16]byte, n int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.back) == 0 {
		return e, 0
	}
	first := s.back[0]
	s.back = s.back[1:]
	return first.b, first.n
}

// HangupFd implements nic.EventSink: the sink lives as long as its session.
func (s *sink) HangupFd() int { return -1 }

// Raise implements rdmacm.Signal.
func (s *sink) Raise() bool {
	s.c.m.link.send(vmproto.Raise, s.id)
	return true
}

// Lower implements rdmacm.Signal.
func (s *sink) Lower() { s.c.m.link.send(vmproto.Lower, s.id) }

// Close implements both.
func (s *sink) Close() {
	s.mu.Lock()
	s.closed, s.back = true, nil
	s.mu.Unlock()
	s.c.forget(s)
	s.c.m.link.send(vmproto.Drop, s.id)
}

// hold has events wait, if some were sent: the program may have unread ones.
func (s *sink) hold() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.held = s.sent
	return s.held
}

// give puts an event back that the program has not read. Those that are given come before those
// that were held.
func (s *sink) give(list []event) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.held {
		s.back = append(list, s.back...)
		s.given += len(list)
	}
}

// release sends what is left.
func (s *sink) release() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.held {
		return
	}
	s.held, s.sent = false, len(s.back) > 0
	for _, e := range s.back {
		s.c.m.link.send(vmproto.Event, s.id, e.b[:e.n])
	}
	s.back, s.given = nil, 0
}

// A handle is what a program is given to read events from. The agent makes it.
type handle struct{ s *sink }

// Close implements uverbs.Handle. The sink is its session's to close.
func (handle) Close() error { return nil }
