package server

import (
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"syscall"

	"vrdma.dev/vrdma/internal/budget"
	"vrdma.dev/vrdma/internal/client/credentials"
	"vrdma.dev/vrdma/internal/client/diag"
	"vrdma.dev/vrdma/internal/client/protocol"
	"vrdma.dev/vrdma/internal/device/registry"
	"vrdma.dev/vrdma/internal/device/sysfs"
)

// A Door is a socket with one virtual NIC behind it. Whoever can connect to the socket can
// use that NIC, and no other: which one it is does not depend on what a client says.
type Door struct {
	Socket string // PATH; the device tree lies in PATH.d/sys
	// NIC is nil for the first door of a daemon that has no default NIC: who comes there is
	// told so.
	NIC *registry.NIC
	// DirMode is the mode of the socket's directory if it has to be made; 0 means 0700.
	DirMode fs.FileMode
	// SocketMode is the socket's mode; 0 means 0600.
	SocketMode fs.FileMode
	// Admit says why a process may not use the NIC; nil: whoever can connect may. It is asked
	// when a process introduces itself or looks, and not again for the devices that it opens.
	Admit func(who *credentials.Caller, conn syscall.Conn) error
	// Claim says why programs cannot use the NIC here and now, because it is on another host; nil:
	// they can. It is asked when a process introduces itself, and may wait for a while.
	Claim func() error
	// Account is the tenant's that pays for what is used through the door; nil: the users do.
	Account *budget.Account
	// Commands and Requests bound commands, and requests for connections, a second; nil: no
	// limit. A command waits for its turn. A request is refused at once: who asks for a
	// connection has a time-out, and would rather know.
	Commands, Requests *budget.Pace
	// Rests: nothing is open but the socket while nobody uses the NIC. Whoever opened such a door
	// removes the device tree, with the directory that it is in.
	Rests bool
	// Side: the NIC has another door, and this one, which rests, has a device tree of its own.
	Side bool
	// Guest opens the NIC's end of a virtual machine, and says what that is started with; nil: the NIC has
	// none.
	Guest func() (protocol.GuestCard, error)
	// Programs counts the programs that use the NIC, for those who cannot wait for an answer of Users; nil: nobody asks.
	Programs *atomic.Int32
	// Bound are the workloads that have the NIC from the beginning. Those that are gone are left out.
	Bound []Binding
	// Alone: one workload at a time uses the NIC, see workload.go.
	Alone bool
	// Attach, if it is there, has the NIC's way to others lead through the network namespace of a
	// workload, that in which the peer of conn is, before the workload's first program has the NIC; it says why
	// it cannot be. Detach ends that, when the last one has let go of it. They are not called at
	// the same time. Such a door is Alone.
	Attach func(conn syscall.Conn) error
	Detach func()
}

// A door is one that is open.
type door struct {
	Door
	srv      *Server
	listener *net.UnixListener
	tree     *sysfs.Tree
	ids      atomic.Uint64 // of sessions and event channels; of all doors together they would tell of others

	attaching sync.Mutex // held while Attach or Detach is called; before mu

	mu       sync.Mutex
	attached uint64                    // guarded by mu; the workload that the NIC is attached to; 0: none
	closed   bool                      // guarded by mu
	guests   map[*protocol.Conn]*Guest // guarded by mu
	bound    []*Binding                // guarded by mu; of one namespace; none: the first workload to come has the NIC
	over     map[uint64]string         // guarded by mu; the namespaces of containers that are gone, and what they were called
	gone     chan struct{}             // closed with it
	empty    chan struct{}             // closed when it is closed and there are no guests
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
	return &door{
		Door: d, srv: s, listener: l, guests: make(map[*protocol.Conn]*Guest), gone: make(chan struct{}), empty: make(chan struct{}),
		bound: stillThere(d.Bound),
	}, nil
}

// writeTree writes the device tree of the door's NIC beside its socket, or says where it will
// be.
func (d *door) writeTree(desk *diag.Service) error {
	if d.NIC == nil {
		return nil
	}
	root, read := d.Socket+".d/sys", func() []sysfs.Counter { return desk.Counters(d.NIC) }
	switch {
	case d.Side:
		d.tree = sysfs.Later(root, d.NIC.Device, d.DirMode, read)
		go func() { // close waits for it; whoever connects before has it written at once
			if err := d.tree.Write(); err != nil {
				d.srv.log.Warn("a NIC has no device tree for containers", "nic", d.NIC.Name, "error", err)
			}
		}()
		return nil
	case d.Rests:
		d.NIC.PlaceTree(root, d.DirMode, read)
	default:
		if err := d.NIC.WriteTree(root, d.DirMode, read); err != nil {
			return err
		}
	}
	d.tree = d.NIC.Tree
	return nil
}

// close undoes openDoor and writeTree.
func (d *door) close() error {
	d.listener.Close()
	switch {
	case d.tree == nil:
		return nil
	case d.Rests:
		d.tree.Leave()
		return nil
	}
	return d.tree.Remove()
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
		if c, err := credentials.Credentials(u); err == nil {
			who = fmt.Sprintf("pid %d", c.Pid)
		}
		return fmt.Errorf("%s is served already, by %s: stop it, or choose another path with --socket", socket, who)
	}
	if !errors.Is(err, syscall.ECONNREFUSED) {
		return fmt.Errorf("the socket %s is there but cannot be tried: %w", socket, err)
	}
	return os.Remove(socket)
}
