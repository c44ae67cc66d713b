package server

import (
	"sync"

	"vrdma.dev/vrdma/internal/client/protocol"
)

// buffers hold messages while they are handled. A connection that is idle, as
// nearly all are, holds none.
var buffers = sync.Pool{New: func() any { b := make([]byte, protocol.MaxMessage); return &b }}

// receive waits for a message and reads it into a buffer of the pool. Descriptors
// that come with it are closed unseen: the daemon makes every file that it uses.
func receive(c *protocol.Conn) (*[]byte, int, error) {
	if err := c.Wait(); err != nil {
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
