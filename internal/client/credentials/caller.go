package credentials

import (
	"errors"
	"net"
	"syscall"

	"golang.org/x/sys/unix"

	"vrdma.dev/vrdma/internal/budget"
)

// A Caller is the peer of a connection.
type Caller struct {
	Pid, UID, GID int
	// Program and Label are the peer's own description.
	Program, Label string
	// Machine is the name of the peer's virtual machine; empty: it is a process of this host.
	Machine string
	// NIC is the name of the NIC whose socket the peer connected to.
	NIC     string
	Home    Home
	HomeErr error           // why Home is unknown
	Account *budget.Account // the account to charge
	Owner   bool            // the peer is the daemon's owner
}

// Of returns the peer of a connection, as far as the kernel knows it.
func Of(u *net.UnixConn) (Caller, error) {
	cred, err := Credentials(u)
	if err != nil {
		return Caller{}, err
	}
	c := Caller{Pid: int(cred.Pid), UID: int(cred.Uid), GID: int(cred.Gid)}
	c.Home, c.HomeErr = homeOfPeer(u, c.Pid)
	return c, nil
}

// Locate finds what Home.Sees needs for the process behind conn, and its network namespace. For a process that has ended it finds
// nothing, and no process sees it.
func (c *Caller) Locate(conn syscall.Conn) {
	if c.HomeErr != nil {
		return
	}
	if whileThere(conn, c.Pid, func() error { return c.Home.locate(c.Pid) }) != nil {
		c.Home.numbers, c.Home.Net = nil, ""
	}
}

// Share returns the number by which loop time and threads are divided among users: the uid, except that the daemon's owner has a
// number that no container's root has.
func (c *Caller) Share() int {
	if c.Owner {
		return -1
	}
	return c.UID
}

// SameUser reports whether c and o are programs of the same user: the same number in the same namespaces. It returns false if the
// namespaces of one are unknown.
func (c *Caller) SameUser(o *Caller) bool {
	return c.UID == o.UID && c.HomeErr == nil && o.HomeErr == nil && c.Home.Differs(&o.Home) == ""
}

// Credentials returns the credentials of the connected process.
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
