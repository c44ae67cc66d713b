package credentials

import (
	"os"
	"syscall"

	"golang.org/x/sys/unix"

	"vrdma.dev/vrdma/internal/client/protocol"
)

// soPeerPidfd is SO_PEERPIDFD (Linux 6.5): the pidfd of the process that connected,
// right even if its number means another process by now or nothing in our pid
// namespace.
const soPeerPidfd = 77

// Watch calls ended when the process behind the pidfd, which it owns, is gone. Where there
// is none, the end of the connection has to do. The returned function ends the watch.
func Watch(fd int, ended func()) (stop func()) {
	if fd < 0 {
		return func() {}
	}
	unix.SetNonblock(fd, true) // a pollable file: no thread waits for it
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
