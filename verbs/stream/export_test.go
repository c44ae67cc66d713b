package stream

import (
	"net"
	"testing"
	"time"
)

// SetQuickly has halves count for a stream that are full within d, until the test ends. It comes before everything
// that uses connections.
func SetQuickly(t testing.TB, d time.Duration) {
	was := quickly
	t.Cleanup(func() { quickly = was })
	quickly = d
}

// Buffers returns the sizes of a connection's buffers now.
func Buffers(conn net.Conn) (in, out int) {
	c := conn.(*Conn)
	c.mu.Lock()
	defer c.mu.Unlock()
	return len(c.in.mem), len(c.out.mem)
}
