package frontdoor

import (
	"sync"

	"golang.org/x/sys/unix"

	"vrdma/internal/channel"
)

// buffers hold messages while they are handled. A connection that is idle, as
// nearly all are, holds none.
var buffers = sync.Pool{New: func() any { b := make([]byte, channel.MaxMessage); return &b }}

// receive waits for a message and reads it into a buffer of the pool. Descriptors
// that come with it are closed unseen: the daemon makes every file that it uses.
func receive(c *channel.Conn) (*[]byte, int, error) {
	if err := readable(c); err != nil {
		return nil, 0, err
	}
	buf := buffers.Get().(*[]byte)
	n, fds, err := c.ReadMessage(*buf)
	if err != nil {
		buffers.Put(buf)
		return nil, 0, err
	}
	channel.CloseFDs(fds)
	return buf, n, nil
}

// readable waits until there is something to read, the end included.
func readable(c *channel.Conn) error {
	raw, err := c.SyscallConn()
	if err != nil {
		return err
	}
	return raw.Read(func(fd uintptr) bool { return ready(int(fd)) })
}

// ready reports whether fd has something to read, without waiting.
func ready(fd int) bool {
	p := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}
	for {
		n, err := unix.Poll(p, 0)
		if err == unix.EINTR {
			continue
		}
		return err != nil || n > 0
	}
}
