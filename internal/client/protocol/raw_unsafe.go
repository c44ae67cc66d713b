package protocol

import (
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

// These calls never block, so they bypass Go's scheduler. The kernel accesses only the memory that the header points to, during
// the call; the header is on the heap and keeps it alive.

// A mailbox is the working storage of a receiving call.
type mailbox struct {
	hdr unix.Msghdr
	iov unix.Iovec
}

// receive receives a message.
func (m *mailbox) receive(fd int, buf []byte) (n, flags int, errno syscall.Errno) {
	m.iov.Base = &buf[0]
	m.iov.SetLen(len(buf))
	m.hdr.Iov = &m.iov
	m.hdr.SetIovlen(1)
	n, errno = m.call(fd, unix.MSG_DONTWAIT)
	m.hdr.Iov, m.iov.Base = nil, nil
	m.hdr.SetIovlen(0)
	return n, int(m.hdr.Flags), errno
}

// peek reports whether the next message has descriptors, without receiving it.
func (m *mailbox) peek(fd int) (descriptors bool, errno syscall.Errno) {
	_, errno = m.call(fd, unix.MSG_DONTWAIT|unix.MSG_PEEK)
	return m.hdr.Flags&unix.MSG_CTRUNC != 0, errno
}

func (m *mailbox) call(fd int, flags uintptr) (int, syscall.Errno) {
	m.hdr.Flags = 0
	for {
		n, _, e := unix.RawSyscall(unix.SYS_RECVMSG, uintptr(fd), uintptr(unsafe.Pointer(&m.hdr)), flags)
		if e != unix.EINTR {
			return int(n), e
		}
	}
}

// send sends a message without control messages.
func send(fd int, b []byte) syscall.Errno {
	for {
		_, _, e := unix.RawSyscall6(unix.SYS_SENDTO, uintptr(fd), uintptr(unsafe.Pointer(&b[0])), uintptr(len(b)),
			unix.MSG_DONTWAIT|unix.MSG_NOSIGNAL, 0, 0)
		if e != unix.EINTR {
			return e
		}
	}
}
