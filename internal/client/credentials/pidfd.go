package credentials

import (
	"os"
	"syscall"

	"golang.org/x/sys/unix"

	"vrdma.dev/vrdma/internal/client/protocol"
)

// soPeerPidfd is SO_PEERPIDFD (Linux 6.5): the pidfd of the connected process. It is valid even if the process ID has been reused
// or is not visible in the daemon's pid namespace.
const soPeerPidfd = 77

// Watch calls ended when the process of the pidfd, which it owns, has ended. Without a pidfd, the caller relies on the end of the
// connection. The returned function ends the watch.
func Watch(fd int, ended func()) (stop func()) {
	if fd < 0 {
		return func() {}
	}
	unix.SetNonblock(fd, true) // pollable: the wait blocks no thread
	f := os.NewFile(uintptr(fd), "pidfd")
	raw, err := f.SyscallConn()
	if err != nil {
		f.Close()
		return func() {}
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		if raw.Read(func(fd uintptr) bool { return protocol.Ready(int(fd)) }) == nil {
			ended()
		}
	}()
	return func() {
		f.Close()
		<-done
	}
}

func peerPidfd(c syscall.Conn) (int, error) {
	raw, err := c.SyscallConn()
	if err != nil {
		return -1, err
	}
	fd := -1
	cerr := raw.Control(func(sock uintptr) {
		fd, err = unix.GetsockoptInt(int(sock), unix.SOL_SOCKET, soPeerPidfd)
	})
	if cerr != nil {
		return -1, cerr
	}
	return fd, err
}
