package server

import (
	"syscall"

	"vrdma.dev/vrdma/internal/client/protocol"
)

// Drain refuses new programs, or admits them again. Programs that are served go on, and may open more devices.
func (s *Server) Drain(on bool) { s.draining.Store(on) }

// Draining reports whether new programs are refused.
func (s *Server) Draining() bool { return s.draining.Load() }

// drained returns why a connection is refused while the daemon drains; nil: it is not.
func (s *Server) drained(kind protocol.Kind) error {
	if kind == protocol.KindProcess && s.draining.Load() {
		return refusal(syscall.EBUSY, "the daemon drains, and accepts no new programs: use another host, or have its owner run vrdma drain --off")
	}
	return nil
}
