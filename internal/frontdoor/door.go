package frontdoor

import (
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"syscall"
	"time"

	"vrdma/internal/caller"
	"vrdma/internal/channel"
	"vrdma/internal/devicetree"
	"vrdma/internal/inspect"
	"vrdma/internal/vnic"
)

// A Door is a socket with one virtual NIC behind it. Whoever can connect to the socket can
// use that NIC, and no other: which one it is does not depend on what a client says.
type Door struct {
	Socket string // PATH; the device tree lies in PATH.d/sys
	NIC    *vnic.NIC
	// DirMode is the mode of the socket's directory if it has to be made; 0 means 0700.
	DirMode fs.FileMode
	// SocketMode is the socket's mode; 0 means 0600.
	SocketMode fs.FileMode
}

// A door is one that is open.
type door struct {
	Door
	srv      *Server
	listener *net.UnixListener
}

// openDoor opens the socket. One that nobody answers is taken over; one that somebody
// answers is left alone.
func (s *Server) openDoor(d Door) (*door, error) {
	if d.DirMode == 0 {
		d.DirMode = 0o700
	}
	if d.SocketMode == 0 {
		d.SocketMode = 0o600
	}
	if err := os.MkdirAll(filepath.Dir(d.Socket), d.DirMode); err != nil {
		return nil, fmt.Errorf("the socket's directory: %w", err)
	}
	if err := clearStale(d.Socket); err != nil {
		return nil, err
	}
	l, err := net.ListenUnix("unixpacket", &net.UnixAddr{Name: d.Socket, Net: "unixpacket"})
	if err != nil {
		return nil, fmt.Errorf("the socket: %w", err)
	}
	if err := os.Chmod(d.Socket, d.SocketMode); err != nil {
		l.Close()
		return nil, fmt.Errorf("the socket's mode: %w", err)
	}
	return &door{Door: d, srv: s, listener: l}, nil
}

// writeTree writes the device tree of the door's NIC beside its socket.
func (d *door) writeTree(desk *inspect.Desk) error {
	return d.NIC.WriteTree(d.Socket+".d/sys", d.DirMode, func() []devicetree.Counter { return desk.Counters(d.NIC) })
}

// close undoes openDoor and writeTree.
func (d *door) close() error {
	d.listener.Close()
	if d.NIC.Tree == nil {
		return nil
	}
	return d.NIC.Tree.Remove()
}

// clearStale removes a socket whose daemon is gone. Who may own a path at all is
// settled by package launch before we come here; this protects against mistakes.
func clearStale(socket string) error {
	info, err := os.Lstat(socket)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil
	case err != nil:
		return fmt.Errorf("the socket: %w", err)
	case info.Mode().Type() != fs.ModeSocket:
		return fmt.Errorf("%s exists and is not a socket: choose another path with --socket", socket)
	}
	u, err := net.DialUnix("unixpacket", nil, &net.UnixAddr{Name: socket, Net: "unixpacket"})
	if err == nil {
		defer u.Close()
		who := "an unknown process"
		if c, err := caller.Credentials(u); err == nil {
			who = fmt.Sprintf("pid %d", c.Pid)
		}
		return fmt.Errorf("%s is served already, by %s: stop it, or choose another path with --socket", socket, who)
	}
	if !errors.Is(err, syscall.ECONNREFUSED) {
		return fmt.Errorf("the socket %s is there but cannot be tried: %w", socket, err)
	}
	return os.Remove(socket)
}

// accept serves programs until the socket is closed; it then returns nil.
func (d *door) accept() error {
	s := d.srv
	spare := newSpare()
	defer func() { spare.Close() }()
	var full time.Time // since when there is no descriptor for a connection
	for {
		u, err := d.listener.AcceptUnix()
		switch {
		case err == nil:
			full = time.Time{}
			s.serve(u, d.converse)
		case errors.Is(err, net.ErrClosed):
			return nil
		case errors.Is(err, syscall.EMFILE), errors.Is(err, syscall.ENFILE), errors.Is(err, syscall.ENOMEM):
			if full.IsZero() {
				full = time.Now()
				s.log.Warn("cannot accept a connection: raise the limit of open files (ulimit -n)", "error", err)
			}
			if time.Since(full) < patience {
				time.Sleep(patience / 20) // somebody may close something
				continue
			}
			spare.Close()
			var room bool
			if spare, room = d.admit(err); room {
				full = time.Time{}
			}
		default:
			return fmt.Errorf("accept on %s: %w", d.Socket, err)
		}
	}
}

// patience is how long a connection waits for a descriptor. It is not for ever, because
// those who wait may be those who hold what the others wait for.
const patience = 200 * time.Millisecond

// newSpare is a descriptor that can be given up for a moment; nil if there is none.
func newSpare() *os.File {
	f, _ := os.Open(os.DevNull)
	return f
}

// admit takes a connection with the descriptor that the spare had. If there is another for a
// new spare, somebody has closed one meanwhile, and there is room to serve the connection.
func (d *door) admit(why error) (spare *os.File, room bool) {
	d.listener.SetDeadline(time.Now().Add(patience / 20))
	defer d.listener.SetDeadline(time.Time{})
	u, err := d.listener.AcceptUnix()
	if err != nil {
		time.Sleep(patience / 20)
		return newSpare(), false
	}
	if spare = newSpare(); spare != nil {
		d.srv.serve(u, d.converse)
		return spare, true
	}
	turnAway(u, refusal(channel.Errno(why, syscall.EMFILE), "the daemon has no descriptor left: %v; raise its limit of open files (ulimit -n)", why))
	return newSpare(), false
}

// mostTurned is how many connections are told at one time why they are not served; more
// are closed without a word. Each holds a descriptor until it has spoken, or patience ends.
const mostTurned = 16

// turnAwayBeside turns a connection away without holding up the others.
func (s *Server) turnAwayBeside(u *net.UnixConn, why error) {
	select {
	case s.turning <- struct{}{}:
	default:
		u.Close()
		return
	}
	go func() {
		defer func() { <-s.turning }()
		turnAway(u, why)
	}()
}

// turnAway says why a connection is not served.
func turnAway(u *net.UnixConn, why error) {
	defer u.Close()
	c := channel.NewConn(u)
	c.SetDeadline(time.Now().Add(patience))
	var hello [1024]byte
	if _, fds, err := c.ReadMessage(hello[:]); err == nil {
		channel.CloseFDs(fds)
	}
	refuse(c, why)
}
