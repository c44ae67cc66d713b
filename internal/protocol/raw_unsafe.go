package protocol

import (
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

// These calls never wait, so Go's scheduler is not told of them. The kernel reads and
// writes only what the header points to, during the call; the header is on the heap, and
// keeps it alive.

// A mailbox is what a receiving call needs.
type mailbox struct {
	hdr unix.Msghdr
	iov unix.Iovec
}

// receive receives a message, and control messages into oob.
func (m *mailbox) receive(fd int, buf, oob []byte) (n, oobn, flags int, errno syscall.Errno) {
	m.iov.Base = &buf[0]
	m.iov.SetLen(len(buf))
	m.hdr.Iov = &m.iov
	m.hdr.SetIovlen(1)
	m.hdr.Control = &oob[0]
	for {
		m.hdr.SetControllen(len(oob))
		got, _, e := unix.RawSyscall(unix.SYS_RECVMSG, uintptr(fd), uintptr(unsafe.Pointer(&m.hdr)), unix.MSG_DONTWAIT|unix.MSG_CMSG_CLOEXEC)
		if e == unix.EINTR {
			continue
		}
		m.iov.Base = nil
		if e != 0 {
			return 0, 0, 0, e
		}
		return int(got), int(m.hdr.Controllen), int(m.hdr.Flags), 0
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
