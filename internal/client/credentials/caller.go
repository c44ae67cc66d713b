package credentials

import (
	"errors"
	"net"
	"syscall"

	"golang.org/x/sys/unix"

	"vrdma.dev/vrdma/internal/budget"
)

// A Caller is who is at the other end.
type Caller struct {
	Pid, UID, GID int
	// Program and Label are what it says of itself.
	Program, Label string
	// Machine is the name of the virtual machine that it is in; empty: it is a process of this host.
	Machine string
	// NIC is the name of the one behind the door that it came in by.
	NIC     string
	Home    Home
	HomeErr error           // why Home is not known
	Account *budget.Account // who pays
	Owner   bool            // the daemon's owner does
}

// Of tells who has connected, as far as the kernel knows.
func Of(u *net.UnixConn) (Caller, error) {
	cred, err := Credentials(u)
	if err != nil {
		return Caller{}, err
	}
	c := Caller{Pid: int(cred.Pid), UID: int(cred.Uid), GID: int(cred.Gid)}
	c.Home, c.HomeErr = homeOfPeer(u, c.Pid)
	return c, nil
}

// Locate finds out what Home.Sees needs to know of the process behind conn, and which network
// it is in. Of a process that has ended it finds nothing, and nobody sees it.
func (c *Caller) Locate(conn syscall.Conn) {
	if c.HomeErr != nil {
		return
	}
	if whileThere(conn, c.Pid, func() error { return c.Home.locate(c.Pid) }) != nil {
		c.Home.numbers, c.Home.Net = nil, ""
	}
}

// Share returns the number by which turns of the loop and threads are shared out among users: the
// uid, but the daemon's owner has one that no container's root has.
func (c *Caller) Share() int {
	if c.Owner {
		return -1
	}
	return c.UID
}

// SameUser reports whether c is a program of o's own user: of the same number, and living
// in the same place. If we do not know where one of them lives, it is not.
func (c *Caller) SameUser(o *Caller) bool {
	return c.UID == o.UID && c.HomeErr == nil && o.HomeErr == nil && c.Home.Differs(&o.Home) == ""
}

// Credentials are those of the process that connected.
func Credentials(u *net.UnixConn) (*unix.Ucred, error) {
	raw, err := u.SyscallConn()
	if err != nil {
		return nil, err
	}
	var cred *unix.Ucred
	var cerr error
	err = raw.Control(func(fd uintptr) {
		cred, cerr = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED)
	})
	return cred, errors.Join(err, cerr)
}
