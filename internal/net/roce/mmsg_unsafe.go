package roce

import (
	"unsafe"

	"golang.org/x/sys/unix"
)

// mmsghdr is struct mmsghdr of sendmmsg(2).
type mmsghdr struct {
	hdr unix.Msghdr
	n   uint32 // bytes moved
	_   [4]byte
}

// The system calls below do not block, so they bypass the runtime's bookkeeping, which would cost more than the
// calls. Their arguments are slices on the heap, which does not move, and the headers keep every Go pointer in
// them alive.

func sendmmsg(fd int, h []mmsghdr) (int, error) {
	return mmsg(unix.SYS_SENDMMSG, fd, h, unix.MSG_DONTWAIT|unix.MSG_NOSIGNAL)
}

func recvmmsg(fd int, h []mmsghdr) (int, error) {
	return mmsg(unix.SYS_RECVMMSG, fd, h, unix.MSG_DONTWAIT)
}

func mmsg(call uintptr, fd int, h []mmsghdr, flags uintptr) (int, error) {
	for {
		n, _, errno := unix.RawSyscall6(call, uintptr(fd), uintptr(unsafe.Pointer(&h[0])), uintptr(len(h)), flags, 0, 0)
		switch errno {
		case 0:
			return int(n), nil
		case unix.EINTR:
			continue
		}
		return 0, errno
	}
}
