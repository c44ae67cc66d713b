package server

import (
	"sync"

	"vrdma.dev/vrdma/internal/client/protocol"
)

// buffers hold messages while they are handled. An idle connection, as nearly all are, holds none.
var buffers = sync.Pool{New: func() any { b := make([]byte, protocol.MaxMessage); return &b }}

// receive waits for a message, outside of the gate, and reads it into a buffer of the pool. It closes descriptors that
// come with the message: the daemon uses only files that it has made.
func (s *Server) receive(c *protocol.Conn) (*[]byte, int, error) {
	if err := s.gate.Await(c); err != nil {
		return nil, 0, err
	}
	buf := buffers.Get().(*[]byte)
	n, fds, err := c.ReadMessage(*buf)
	if err != nil {
		buffers.Put(buf)
		return nil, 0, err
	}
	protocol.CloseFDs(fds)
	return buf, n, nil
}
