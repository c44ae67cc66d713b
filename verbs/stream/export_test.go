package stream

import "net"

// Buffers are the sizes of a connection's buffers now.
func Buffers(conn net.Conn) (in, out int) {
	c := conn.(*Conn)
	c.mu.Lock()
	defer c.mu.Unlock()
	return len(c.in.mem), len(c.out.mem)
}
