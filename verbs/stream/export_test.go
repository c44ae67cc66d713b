package stream

import (
	"net"
	"testing"
	"time"
)

// SetQuickly sets the time within which a half must fill up to count as a stream, until the test ends. It is called before any
// connection is used.
func SetQuickly(t testing.TB, d time.Duration) {
	was := quickly
	t.Cleanup(func() { quickly = was })
	quickly = d
}

// Buffers returns the current sizes of a connection's buffers.
func Buffers(conn net.Conn) (in, out int) {
	c := conn.(*Conn)
	c.mu.Lock()
	defer c.mu.Unlock()
	return len(c.in.mem), len(c.out.mem)
}
