package server

import (
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"vrdma.dev/vrdma/internal/budget"
	"vrdma.dev/vrdma/internal/client/credentials"
	"vrdma.dev/vrdma/internal/client/diag"
	"vrdma.dev/vrdma/internal/client/protocol"
)

// The control socket serves the tools that may stop the daemon and see all users. protocol.ControlPlaces has its path.
// Only the daemon's user can enter its directory, and mayControl checks the peer, too.

// A controlSocket is a socket in a directory that daemons of the same user share.
type controlSocket struct {
	listener *net.UnixListener
	path     string
	file     os.FileInfo // of the socket
	dirMode  fs.FileMode // of its directory
}

// listenControl makes the control socket at the first usable path.
func (s *Server) listenControl(socket string) (*controlSocket, error) {
	dir, err := filepath.EvalSymlinks(filepath.Dir(socket))
	if err != nil {
		return nil, err
	}
	socket = filepath.Join(dir, filepath.Base(socket))
	return s.listenFirst(socket, protocol.ControlPlaces(socket, s.admission.uid), 0o700, 0o600)
}

// listenFirst makes a socket at the first usable path of places, in a directory of mode dir. It prefers one that another
// daemon has left.
func (s *Server) listenFirst(socket string, places []string, dir, mode fs.FileMode) (*controlSocket, error) {
	var errs []error
	for _, path := range places {
		if l, _, err := s.inherit(path); l != nil || err != nil {
			if err != nil {
				return nil, err
			}
			s.mu.Lock()
			s.unlink = slices.DeleteFunc(s.unlink, func(o *net.UnixListener) bool { return o == l }) // close removes it
			s.mu.Unlock()
			file, err := os.Lstat(path)
			return &controlSocket{l, path, file, dir}, err
		}
	}
	uid := s.admission.uid
	for _, path := range places {
		c, err := listenAt(path, uid, dir, mode)
		if err == nil {
			return c, nil
		}
		errs = append(errs, err)
	}
	if len(errs) == 0 {
		errs = append(errs, fmt.Errorf("every place for it lies in the directory of %s", socket))
	}
	return nil, errors.Join(errs...)
}

// listenAt makes the socket, and its directory if necessary. It removes the sockets of dead daemons. A daemon that
// still answers at our own path has lost the path to us, because package launch lets only one daemon have it. Its
// socket is removed, too.
func listenAt(path string, uid int, dirMode, mode fs.FileMode) (*controlSocket, error) {
	dir, err := lockDirectory(filepath.Dir(path), uid, dirMode)
	if err != nil {
		return nil, err
	}
	defer dir.Close()
	sweepSockets(dir)
	if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	l, err := net.ListenUnix("unixpacket", &net.UnixAddr{Name: path, Net: "unixpacket"})
	if err != nil {
		return nil, err
	}
	l.SetUnlinkOnClose(false) // the path may be another daemon's by then
	file, err := os.Lstat(path)
	if err = errors.Join(err, os.Chmod(path, mode)); err != nil {
		l.Close()
		return nil, err
	}
	return &controlSocket{l, path, file, dirMode}, nil
}

// lockDirectory opens a directory of uid's that gives others no more rights than mode, makes it if necessary, and locks
// it: while one daemon removes dead sockets, no other may be between bind and listen. Where every user may write,
// another user can make a directory or a link of this name first. That is refused.
func lockDirectory(path string, uid int, mode fs.FileMode) (*os.File, error) {
	for {
		if err := os.Mkdir(path, mode); err != nil && !errors.Is(err, fs.ErrExist) {
			return nil, err
		}
		fd, err := unix.Open(path, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
		if errors.Is(err, unix.ENOENT) {
			continue // another daemon has just removed it
		}
		if err != nil {
			return nil, &fs.PathError{Op: "open", Path: path, Err: err}
		}
		f := os.NewFile(uintptr(fd), path)
		var st, now unix.Stat_t
		if err := unix.Fstat(fd, &st); err != nil {
			f.Close()
			return nil, err
		}
		if int(st.Uid) != uid || st.Mode&0o077&^uint32(mode) != 0 {
			f.Close()
			return nil, fmt.Errorf("%s belongs to user %d and has mode %04o, want user %d and %04o: remove it", path, st.Uid, st.Mode&0o7777, uid, mode)
		}
		if missing := uint32(mode) &^ st.Mode; missing&0o077 != 0 { // because of the umask
			if err := unix.Fchmod(fd, uint32(mode)); err != nil {
				f.Close()
				return nil, err
			}
		}
		if err := unix.Flock(fd, unix.LOCK_EX); err != nil {
			f.Close()
			return nil, err
		}
		if unix.Lstat(path, &now) == nil && now.Dev == st.Dev && now.Ino == st.Ino {
			return f, nil
		}
		f.Close() // removed while we waited
	}
}

// sweepSockets removes sockets that no process serves. dir is locked.
func sweepSockets(dir *os.File) {
	names, err := dir.Readdirnames(-1)
	if err != nil {
		return
	}
	for _, name := range names {
		path := filepath.Join(dir.Name(), name)
		if !strings.HasSuffix(name, ".sock") {
			continue
		}
		u, err := net.DialUnix("unixpacket", nil, &net.UnixAddr{Name: path, Net: "unixpacket"})
		if err == nil {
			u.Close()
		} else if errors.Is(err, syscall.ECONNREFUSED) {
			os.Remove(path)
		}
	}
}

// close removes the socket, and its directory with the last one. It may be called again.
func (c *controlSocket) close(uid int) {
	if c == nil {
		return
	}
	c.listener.Close()
	dir, err := lockDirectory(filepath.Dir(c.path), uid, c.dirMode)
	if err != nil {
		return
	}
	defer dir.Close()
	if now, err := os.Lstat(c.path); err == nil && os.SameFile(now, c.file) {
		os.Remove(c.path)
	}
	os.Remove(dir.Name()) // fails while another daemon has a socket there
}

// serveTools accepts tools at the control socket until Close.
func (s *Server) serveTools() {
	if s.control == nil {
		return
	}
	for {
		err := s.acceptor.accept(s.control.listener, controlEndpoint{s})
		if err == nil {
			return
		}
		s.log.Warn("trouble at the control socket", "error", err)
		time.Sleep(patience)
	}
}

// controlEndpoint is the control socket. It implements endpoint.
type controlEndpoint struct{ srv *Server }

// account implements endpoint.
func (e controlEndpoint) account(who *credentials.Caller) *budget.Account {
	return e.srv.admission.account(who)
}

// converse serves one tool.
func (e controlEndpoint) converse(c *protocol.Conn, who credentials.Caller) error {
	s := e.srv
	first, who, err := s.greetTool(c, who, "control")
	if err != nil {
		return err
	}
	if err := s.admission.mayControl(&who); err != nil {
		if s.cfg.ContainerTakeover && s.admission.maySucceed(&who) {
			return s.tools.serveSuccessor(c, err)
		}
		s.log.Warn("a process was refused at the control socket", "pid", who.Pid, "uid", who.UID, "program", who.Program, "why", err)
		return err
	}
	return s.tools.serve(c, diag.View{Who: &who, Conn: c, All: true, Resident: true, NIC: first.NIC, Socket: first.Socket})
}

// greetTool reads the hello of a tool at a socket that is no listener. Its requests are about the daemon's first
// listener.
func (s *Server) greetTool(c *protocol.Conn, who credentials.Caller, socket string) (*listener, credentials.Caller, error) {
	first := s.listeners.first()
	if err := s.awaitHello(c); err != nil {
		return first, who, err
	}
	defer s.gate.Leave()
	h, who, fds, err := s.greeting(c, who, first)
	protocol.CloseFDs(fds)
	if err == nil && h.Kind != protocol.KindControl {
		err = refusal(syscall.EOPNOTSUPP, "programs connect to %s, not to the %s socket", first.Socket, socket)
	}
	return first, who, err
}

// mayControl returns why a process may not see and stop everything.
func (a *admission) mayControl(who *credentials.Caller) error {
	if who.UID != a.uid && who.UID != 0 {
		return refusal(syscall.EPERM, "only the daemon's own user (%d) and root may control it, not user %d", a.uid, who.UID)
	}
	return a.resident(who)
}

// maySucceed reports whether a process in another container may take over from this daemon. It has the daemon's user and the
// machine's namespaces, and can reach the control socket.
func (a *admission) maySucceed(who *credentials.Caller) bool {
	return who.UID == a.uid && who.HomeErr == nil && a.home.Beside(&who.Home)
}

// resident returns why a process is not in the namespaces of the daemon.
func (a *admission) resident(who *credentials.Caller) error {
	if a.home.Err != nil {
		return refusal(syscall.EPERM, "the daemon cannot tell where processes live (%v): stop it with kill %d", a.home.Err, os.Getpid())
	}
	if who.HomeErr != nil {
		return refusal(syscall.EPERM, "the daemon cannot tell where process %d lives: %v", who.Pid, who.HomeErr)
	}
	if what := a.home.Stranger(&who.Home); what != "" {
		return refusal(syscall.EPERM, "process %d has another %s than the daemon, as in a container: ask from where the daemon runs", who.Pid, what)
	}
	return nil
}
