package netns

import (
	"errors"
	"fmt"
	"os"
	"runtime"
	"sync/atomic"
	"syscall"

	"golang.org/x/sys/unix"
)

// A Space is a network namespace other than the daemon's.
type Space struct {
	file   *os.File
	cookie uint64
	helped atomic.Bool // a helper had to create sockets
}

// A Kind is a kind of socket: the arguments of socket(2).
type Kind struct{ Family, Type, Protocol int }

// The kinds of sockets.
var (
	UDP4    = Kind{unix.AF_INET, unix.SOCK_DGRAM, unix.IPPROTO_UDP}
	UDP6    = Kind{unix.AF_INET6, unix.SOCK_DGRAM, unix.IPPROTO_UDP}
	Netlink = Kind{unix.AF_NETLINK, unix.SOCK_RAW, unix.NETLINK_ROUTE}
)

// Of returns the namespace in which the peer of an accepted connection created its socket.
func Of(conn syscall.Conn) (*Space, error) {
	raw, err := conn.SyscallConn()
	if err != nil {
		return nil, err
	}
	s := &Space{}
	cerr := raw.Control(func(fd uintptr) {
		var ns int
		if s.cookie, err = unix.GetsockoptUint64(int(fd), unix.SOL_SOCKET, unix.SO_NETNS_COOKIE); err != nil {
			err = fmt.Errorf("the kernel does not say which network namespace it is (SO_NETNS_COOKIE, Linux 5.14): %w", err)
			return
		}
		if ns, err = unix.IoctlRetInt(int(fd), unix.SIOCGSKNS); err != nil {
			err = fmt.Errorf("the kernel does not let this daemon into the network namespace (SIOCGSKNS): %w", err)
			return
		}
		s.file = os.NewFile(uintptr(ns), "net")
	})
	if err = errors.Join(cerr, err); err != nil {
		return nil, err
	}
	return s, nil
}

// At returns the namespace at a path; it needs root.
func At(path string) (*Space, error) {
	file, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	s := &Space{file: file}
	var cerr error
	err = s.inside(func() {
		var fds []int
		if fds, cerr = makeSockets([]Kind{UDP4}); cerr == nil {
			s.cookie, cerr = unix.GetsockoptUint64(fds[0], unix.SOL_SOCKET, unix.SO_NETNS_COOKIE)
			closeAll(fds)
		}
	})
	if err = errors.Join(err, cerr); err != nil {
		file.Close()
		return nil, fmt.Errorf("the network namespace %s: %w", path, err)
	}
	return s, nil
}

// Cookie returns the kernel's identifier of the namespace.
func (s *Space) Cookie() uint64 { return s.cookie }

// Name returns the namespace's name in the format of credentials.NamespaceAt.
func (s *Space) Name() (string, error) {
	var st unix.Stat_t
	if err := unix.Fstat(int(s.file.Fd()), &st); err != nil {
		return "", os.NewSyscallError("fstat", err)
	}
	return fmt.Sprintf("%d:%d", st.Dev, st.Ino), nil
}

// Helped reports whether a helper process creates the sockets, which is slow.
func (s *Space) Helped() bool { return s.helped.Load() }

// Close releases the namespace.
func (s *Space) Close() error { return s.file.Close() }

// Open creates sockets in the namespace. They are non-blocking, except for netlink, and closed on exec.
func (s *Space) Open(kinds []Kind) ([]int, error) {
	fds, err := s.openHere(kinds)
	if errors.Is(err, unix.EPERM) {
		fds, err = s.openBeside(kinds, err)
		s.helped.Store(err == nil)
	}
	if err != nil {
		return nil, err
	}
	for _, fd := range fds {
		c, err := unix.GetsockoptUint64(fd, unix.SOL_SOCKET, unix.SO_NETNS_COOKIE)
		if err == nil && c != s.cookie {
			err = fmt.Errorf("a socket was made in network namespace %d instead of %d", c, s.cookie)
		}
		if err != nil {
			closeAll(fds)
			return nil, err
		}
	}
	return fds, nil
}

// openHere creates the sockets on a thread that enters the namespace.
func (s *Space) openHere(kinds []Kind) (fds []int, err error) {
	if herr := s.inside(func() { fds, err = makeSockets(kinds) }); herr != nil {
		return nil, herr
	}
	return fds, err
}

// inside runs f on a thread in the namespace.
func (s *Space) inside(f func()) (err error) {
	done := make(chan struct{})
	go func() {
		defer close(done)
		runtime.LockOSThread() // never unlocked: the runtime ends the thread with this goroutine
		if err = unix.Setns(int(s.file.Fd()), unix.CLONE_NEWNET); err == nil {
			f()
		}
	}()
	<-done
	return err
}

// makeSockets creates sockets in the thread's namespace.
func makeSockets(kinds []Kind) (fds []int, err error) {
	for _, k := range kinds {
		flags := unix.SOCK_CLOEXEC
		if k != Netlink {
			flags |= unix.SOCK_NONBLOCK
		}
		fd, err := unix.Socket(k.Family, k.Type|flags, k.Protocol)
		if err != nil {
			closeAll(fds)
			return nil, os.NewSyscallError("socket", err)
		}
		fds = append(fds, fd)
	}
	return fds, nil
}

func closeAll(fds []int) {
	for _, fd := range fds {
		unix.Close(fd)
	}
}
