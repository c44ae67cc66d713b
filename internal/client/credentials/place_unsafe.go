package credentials

import (
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

// mostGroups is NGROUPS_MAX: no process has more.
const mostGroups = 1 << 16

// peerGroups returns the supplementary groups that the process behind conn had when it connected
// (SO_PEERGROUPS, Linux 4.13); none if the kernel does not say.
//
// The kernel writes at most as many bytes as size says, which is the length of the slice, and
// nothing keeps the pointers after the call.
func peerGroups(conn syscall.Conn) (groups []uint32) {
	raw, err := conn.SyscallConn()
	if err != nil {
		return nil
	}
	raw.Control(func(fd uintptr) {
		for n := 64; n <= mostGroups; n *= 32 {
			buf := make([]uint32, n)
			size := uint32(n * 4)
			_, _, errno := unix.Syscall6(unix.SYS_GETSOCKOPT, fd, unix.SOL_SOCKET, unix.SO_PEERGROUPS,
				uintptr(unsafe.Pointer(&buf[0])), uintptr(unsafe.Pointer(&size)), 0)
			if errno == unix.ERANGE {
				continue
			}
			if errno == 0 {
				groups = buf[:size/4]
			}
			return
		}
	})
	return groups
}
