package routes

import (
	"math/rand/v2"
	"os"

	"golang.org/x/sys/unix"
)

// A daemon that takes over from another one continues with its sockets. Answers to the questions of the daemon before
// may still be in them: they have other numbers, because every daemon begins with a random one.
func init() { questions.Store(rand.Uint32()) }

// Sockets returns the sockets of e, for the NewElsewhere of the next daemon; -1 stands for none. They stay those of e.
func (e *Elsewhere) Sockets() (netlink, udp4, udp6 int) {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.netlink, e.udp[0], e.udp[1]
}

// Descriptor returns the socket of w, for the InheritWatch of the next daemon. It stays that of w.
func (w *Watch) Descriptor() (fd int, err error) {
	raw, err := w.file.SyscallConn()
	if err != nil {
		return -1, err
	}
	err = raw.Control(func(of uintptr) { fd = int(of) })
	return fd, err
}

// InheritWatch takes over the socket of another daemon's Watch. That daemon may have read messages that nobody has acted
// on: the caller must query the current state.
func InheritWatch(fd int) (*Watch, error) {
	if err := unix.SetNonblock(fd, true); err != nil {
		unix.Close(fd)
		return nil, os.NewSyscallError("fcntl", err)
	}
	return watchOf(fd), nil
}
