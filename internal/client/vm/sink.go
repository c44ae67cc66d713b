package vm

import (
	"sync"

	"vrdma.dev/vrdma/internal/client/vm/vmproto"
)

// A sink sends events to a program through the agent: nic.EventSink and rdmacm.Signal.
type sink struct {
	c  *conversation
	id uint32

	mu     sync.Mutex
	sent   bool    // the program may have unread events
	held   bool    // events wait until a command has ended (recall.go)
	back   []event // withdrawn from the program, and held
	given  int     // number of withdrawn events
	closed bool
}

type event struct {
	b [16]byte
	n int
}

// mostHeld is the maximum number of events that wait here for the end of a command, besides withdrawn ones. More wait in their
// queue, charged to their user.
const mostHeld = 4096

// Post implements nic.EventSink.
func (s *sink) Post(e [16]byte, n int) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return true
	}
	if s.held {
		// A withdrawn event is posted again: there is always space for it.
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

// Number implements server.Sink.
func (s *sink) Number() uint32 { return s.id }

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

// hold makes events wait, if some were sent: the program may have unread ones.
func (s *sink) hold() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.held = s.sent
	return s.held
}

// give returns unread events to the sink. They come before events that were held.
func (s *sink) give(list []event) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.held {
		s.back = append(list, s.back...)
		s.given += len(list)
	}
}

// release sends the remaining events.
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

// A handle is a program's reference to a sink. The agent creates it in the guest.
type handle struct{ s *sink }

// Close implements uverbs.Handle. The session closes the sink.
func (handle) Close() error { return nil }
