package server

import (
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"vrdma.dev/vrdma/internal/budget"
	"vrdma.dev/vrdma/internal/client/credentials"
	"vrdma.dev/vrdma/internal/client/diag"
	"vrdma.dev/vrdma/internal/client/protocol"
)

// The control socket: who may stop the daemon and see everybody asks here. Where it is,
// package channel says (place.go). Its directory is the user's alone, and who comes in is
// looked at besides (mayControl).

// A controlSocket listens.
type controlSocket struct {
	listener *net.UnixListener
	path     string
	file     os.FileInfo // the socket's own
	dirMode  fs.FileMode // of its directory
}

// listenControl makes the control socket in the first place that can be used.
func listenControl(socket string, uid int) (*controlSocket, error) {
	dir, err := filepath.EvalSymlinks(filepath.Dir(socket))
	if err != nil {
		return nil, err
	}
	socket = filepath.Join(dir, filepath.Base(socket))
	return listenFirst(socket, protocol.ControlPlaces(socket, uid), uid, 0o700, 0o600)
}

// listenFirst makes a socket at the first of some places that can be used, in a directory of
// mode dir.
func listenFirst(socket string, places []string, uid int, dir, mode fs.FileMode) (*controlSocket, error) {
	var errs []error
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

// listenAt makes the directory, if need be, and the socket in it. What dead daemons left
// there goes. A daemon that still answers at our own path has lost its place to us, since
// somebody removed it: package launch lets only one have it. Its socket goes as well.
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
	l.SetUnlinkOnClose(false) // the name may be another daemon's by then
	file, err := os.Lstat(path)
	if err = errors.Join(err, os.Chmod(path, mode)); err != nil {
		l.Close()
		return nil, err
	}
	return &controlSocket{l, path, file, dirMode}, nil
}

// lockDirectory opens a directory of uid's that lets others do no more than mode says, makes it if it is not there,
// and locks it: while one daemon removes what is dead, no other may be between bind and
// listen. Others can be here first, where everybody may write, with a directory or a
// link of this name: that is refused.
func lockDirectory(path string, uid int, mode fs.FileMode) (*os.File, error) {
	for {
		if err := os.Mkdir(path, mode); err != nil && !errors.Is(err, fs.ErrExist) {
			return nil, err
		}
		fd, err := unix.Open(path, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
		if errors.Is(err, unix.ENOENT) {
			continue // somebody has just removed it
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
		if missing := uint32(mode) &^ st.Mode; missing&0o077 != 0 { // the umask's
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

// sweepSockets removes sockets that nobody answers. dir is locked.
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

// controlEntrance is the control socket, as connections come in there. It implements entrance.
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
		s.log.Warn("a process was refused at the control socket", "pid", who.Pid, "uid", who.UID, "program", who.Program, "why", err)
		return err
	}
	return s.serveTool(c, diag.View{Who: &who, Conn: c, All: true, Resident: true, NIC: first.NIC, Socket: first.Socket})
}

// greetTool takes the greeting of a tool at a socket that is no door. What it asks is about the
// daemon's first door.
func (s *Server) greetTool(c *protocol.Conn, who credentials.Caller, socket string) (*listener, credentials.Caller, error) {
	first := s.listeners.first()
	h, who, err := s.greeting(c, who, first)
	if err == nil && h.Kind != protocol.KindControl {
		err = refusal(syscall.EOPNOTSUPP, "programs connect to %s, not to the %s socket", first.Socket, socket)
	}
	return first, who, err
}

// mayControl says why a process may not see and stop everything.
func (a *admission) mayControl(who *credentials.Caller) error {
	if who.UID != a.uid && who.UID != 0 {
		return refusal(syscall.EPERM, "only the daemon's own user (%d) and root may control it, not user %d", a.uid, who.UID)
	}
	return a.resident(who)
}

// resident says why a process does not live where the daemon lives.
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
