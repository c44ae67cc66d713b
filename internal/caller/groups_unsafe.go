package caller

import (
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

// mostGroups is how many groups a process can have: NGROUPS_MAX.
const mostGroups = 65536

// Groups are the supplementary groups that the process behind a connection had when it
// connected (SO_PEERGROUPS): as with its user, what it has become since does not count. None if
// the kernel does not say.
func Groups(c syscall.Conn) []int {
	raw, err := c.SyscallConn()
	if err != nil {
		return nil
	}
	var list []uint32
	raw.Control(func(fd uintptr) {
		for n := 64; n <= mostGroups; n *= 4 {
			buf := make([]uint32, n)
			size := uint32(4 * n)
			// The kernel writes at most size bytes to buf, which is as long, and the size to
			// size; both outlive the call.
			_, _, errno := unix.Syscall6(unix.SYS_GETSOCKOPT, fd, unix.SOL_SOCKET, unix.SO_PEERGROUPS,
				uintptr(unsafe.Pointer(&buf[0])), uintptr(unsafe.Pointer(&size)), 0)
			if errno == 0 {
				list = buf[:min(int(size)/4, n)]
			}
			if errno != unix.ERANGE {
				return
			}
		}
	})
	out := make([]int, len(list))
	for i, g := range list {
		out[i] = int(g)
	}
	return out
}
