package protocol

import (
	"golang.org/x/sys/unix"
)

// Wait waits until there is a message to read, or the end of the connection.
func (c *Conn) Wait() error {
	raw, err := c.SyscallConn()
	if err != nil {
		return err
	}
	return raw.Read(func(fd uintptr) bool { return Ready(int(fd)) })
}

// Ready reports whether fd has something to read, without waiting.
func Ready(fd int) bool {
	p := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}
	for {
		n, err := unix.Poll(p, 0)
		if err == unix.EINTR {
			continue
		}
		return err != nil || n > 0
	}
}
