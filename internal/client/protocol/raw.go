package protocol

import (
	"io"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// A detached connection does not use Go's poller, which would wake a thread for every message. The code that detached it waits
// for messages in its own way, and reads and writes without blocking.
//
//	Conn ── Detach ──▶ detached ── Close: hung up, the descriptor stays ──▶ Release: closed
//
// Any goroutine may call Close at any time. It hangs up, but keeps the descriptor open until Release, so that its number cannot
// be reused during a read.

// Detach detaches c and returns its descriptor. The caller calls Release when the descriptor is not in use any more.
func (c *Conn) Detach() (int, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	raw, err := c.SyscallConn()
	if err != nil {
		return -1, err
	}
	fd := -1
	if cerr := raw.Control(func(old uintptr) { fd, err = unix.FcntlInt(old, unix.F_DUPFD_CLOEXEC, 0) }); cerr != nil {
		return -1, cerr
	}
	if err != nil {
		return -1, err
	}
	c.raw, c.detached = fd, true
	c.refuses = unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_PASSRIGHTS, 0) == nil
	c.UnixConn.Close()
	return fd, nil
}

// Close ends the connection. The peer sees its end.
func (c *Conn) Close() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.detached {
		return c.UnixConn.Close()
	}
	if c.raw >= 0 {
		return unix.Shutdown(c.raw, unix.SHUT_RDWR)
	}
	return nil
}

// Release closes the descriptor of a detached connection. It may be slow, because it also closes unread messages and the
// descriptors in them.
func (c *Conn) Release() {
	c.mu.Lock()
	fd := c.raw
	c.raw = -1
	c.mu.Unlock()
	if fd >= 0 {
		unix.Close(fd)
	}
}

// Await waits until there is a message to read, at most for the given time, and reports whether there is. It blocks a thread.
func (c *Conn) Await(most time.Duration) bool {
	for end := time.Now().Add(most); most > 0; most = time.Until(end) {
		t := unix.NsecToTimespec(int64(most))
		n, err := unix.Ppoll([]unix.PollFd{{Fd: int32(c.raw), Events: unix.POLLIN}}, &t, nil)
		if err != unix.EINTR {
			return n > 0
		}
	}
	return false
}

// TryRead receives one message of a detached connection into buf: EAGAIN if there is none,
// io.EOF at the end, ErrMalformed, wrapped, if it is too long or has descriptors.
//
// TryRead must not receive descriptors: the process that created a descriptor can delay its closing, for instance with a FUSE
// file or a lingering socket. So the kernel refuses to send any (Linux 6.16). On an older kernel, and while older messages may be
// queued, TryRead peeks first and leaves such a message to Release.
func (c *Conn) TryRead(buf []byte) (int, error) {
	if !c.bare {
		with, errno := c.box.peek(c.raw)
		if errno != 0 {
			return 0, errno
		}
		if with {
			return 0, malformed("a request with descriptors")
		}
	}
	n, flags, errno := c.box.receive(c.raw, buf)
	if errno != 0 {
		return 0, errno
	}
	if c.refuses && !c.bare {
		_, errno := c.box.peek(c.raw)
		c.bare = errno == unix.EAGAIN
	}
	switch {
	case flags&(unix.MSG_TRUNC|unix.MSG_CTRUNC) != 0:
		return 0, malformed("longer than %d bytes or with descriptors", len(buf))
	case n == 0:
		return 0, io.EOF
	}
	return n, nil
}

// TryWrite sends one message of a detached connection: EAGAIN if the peer's queue is full.
func (c *Conn) TryWrite(b []byte) error {
	if errno := send(c.raw, b); errno != 0 {
		return errno
	}
	return nil
}

// writeDetached is WriteMessage for a detached connection. A peer that does not read blocks a goroutine, not a thread.
func (c *Conn) writeDetached(b, oob []byte) error {
	for wait := 100 * time.Microsecond; ; wait = min(2*wait, 100*time.Millisecond) {
		_, err := unix.SendmsgN(c.raw, b, oob, nil, unix.MSG_DONTWAIT|unix.MSG_NOSIGNAL)
		switch err {
		case syscall.EINTR:
			continue
		case syscall.EAGAIN:
			time.Sleep(wait)
		default:
			return err
		}
	}
}

// Descriptor returns the descriptor of the connection, which stays its own.
func (c *Conn) Descriptor() (fd int, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.detached {
		if c.raw < 0 {
			return -1, io.ErrClosedPipe
		}
		return c.raw, nil
	}
	raw, err := c.SyscallConn()
	if err != nil {
		return -1, err
	}
	err = raw.Control(func(of uintptr) { fd = int(of) })
	return fd, err
}
