package server

import (
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"slices"
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

// A Listener is a socket with one virtual NIC behind it. A process that can connect to the socket can use that NIC and
// no other. What a client says does not matter.
type Listener struct {
	Socket string // PATH; the device tree lies in PATH.d/sys
	// Inherited is the socket, if the service manager made it with its directory and mode, and keeps it; nil: the server makes it,
	// or another daemon hands it over.
	Inherited *net.UnixListener
	// NIC is nil for the first listener of a daemon without a default NIC. Programs get an error there.
	NIC *registry.NIC
	// DirMode is the mode of the socket's directory if the server makes it; 0 means 0700.
	DirMode fs.FileMode
	// SocketMode is the socket's mode; 0 means 0600.
	SocketMode fs.FileMode
	// Admit returns why a process may not use the NIC; nil: every process that can connect may. It is called when a
	// process or a tool says hello, and not again for the devices that a process opens.
	Admit func(who *credentials.Caller, conn syscall.Conn) error
	// Claim returns why programs cannot use the NIC on this host; nil: they can. It is called when a process says
	// hello, and may block for a while.
	Claim func() error
	// Account is the account of the tenant that is charged for the NIC's users; nil: the users are charged.
	Account *budget.Account
	// Commands and Requests bound commands, and connection requests, a second; nil: no limit. A command waits. A
	// connection request is refused at once, because its caller has a timeout.
	Commands, Requests *budget.Pace
	// Rests: an unused NIC holds nothing but the socket. The opener of such a listener removes the device tree with its
	// directory.
	Rests bool
	// Secondary: the NIC has another listener, and this one, which rests, has a device tree of its own.
	Secondary bool
	// OpenGuest opens the NIC's socket for virtual machines, and returns how a virtual machine is started with it; nil:
	// the NIC has none.
	OpenGuest func() (protocol.GuestCard, error)
	// Programs counts the programs that use the NIC, for callers that cannot wait for Users; nil: there are none.
	Programs *atomic.Int32
	// Bound are the workloads that the NIC is bound to from the start. Those that have ended are left out.
	Bound []Binding
	// Exclusive: one workload at a time uses the NIC, see workload.go.
	Exclusive bool
	// Attach connects the NIC to the network namespace of a workload, that of conn's peer, before the workload's first
	// program gets the NIC; nil: nothing does. Detach undoes it after the last program has released the NIC. They are
	// not called at the same time. Such a listener is Exclusive.
	Attach func(conn syscall.Conn) error
	Detach func()
}

// A listener is an open Listener.
type listener struct {
	Listener
	srv    *Server
	socket *net.UnixListener
	tree   *sysfs.Tree
	// continueTree sets tree when the daemon before has ended; nil: tree is set.
	continueTree func() error
	ids          atomic.Uint64 // of sessions and event channels; a common counter would tell a tenant about others

	attaching sync.Mutex // held while Attach or Detach is called; before mu

	mu       sync.Mutex
	attached uint64                   // guarded by mu; the workload that the NIC is attached to; 0: none
	closed   bool                     // guarded by mu
	users    map[*protocol.Conn]*User // guarded by mu
	bound    []*Binding               // guarded by mu; all of one namespace; none: the first workload that connects gets the NIC
	ended    map[uint64]string        // guarded by mu; the namespaces of containers that have ended, and their names
	gone     chan struct{}            // closed by shut
	empty    chan struct{}            // closed when the listener is closed and has no users
}

// openListener opens the socket. It takes over a socket that no process serves, and leaves any other alone.
func (s *Server) openListener(d Listener) (*listener, error) {
	if d.DirMode == 0 {
		d.DirMode = 0o700
	}
	if d.SocketMode == 0 {
		d.SocketMode = 0o600
	}
	l := d.Inherited
	if l == nil {
		var err error
		if l, err = s.listen(&d); err != nil {
			return nil, err
		}
	}
	return &listener{
		Listener: d, srv: s, socket: l, users: make(map[*protocol.Conn]*User), gone: make(chan struct{}), empty: make(chan struct{}),
		bound: stillThere(d.Bound),
	}, nil
}

// listen makes the socket and its directory.
func (s *Server) listen(d *Listener) (*net.UnixListener, error) {
	if err := os.MkdirAll(filepath.Dir(d.Socket), d.DirMode); err != nil {
		return nil, fmt.Errorf("the socket's directory: %w", err)
	}
	l, kept, err := s.inherit(d.Socket)
	if err != nil {
		return nil, err
	}
	if kept { // its mode is the service manager's choice
		d.Inherited = l
		return l, nil
	}
	if l == nil {
		if err := clearStale(d.Socket); err != nil {
			return nil, err
		}
		if l, err = net.ListenUnix("unixpacket", &net.UnixAddr{Name: d.Socket, Net: "unixpacket"}); err != nil {
			return nil, fmt.Errorf("the socket: %w", err)
		}
	}
	if err := os.Chmod(d.Socket, d.SocketMode); err != nil {
		l.Close()
		return nil, fmt.Errorf("the socket's mode: %w", err)
	}
	return l, nil
}

// writeTree writes the device tree of the listener's NIC beside its socket, or sets where it will be.
func (d *listener) writeTree(desk *diag.Service) error {
	if d.NIC == nil {
		return nil
	}
	root, read := d.Socket+".d/sys", func() []sysfs.Counter { return desk.Counters(d.NIC) }
	inherits := d.srv.inherits.Load()
	switch {
	case d.Secondary:
		d.tree = sysfs.Later(root, d.NIC.Device, d.DirMode, read)
		if inherits {
			d.tree.Adopt()
		}
		go func() { // close waits for it; a program that connects before writes it at once
			if err := d.tree.Write(); err != nil {
				d.srv.log.Warn("a NIC has no device tree for containers", "nic", d.NIC.Name, "error", err)
			}
		}()
		return nil
	case d.Rests:
		d.NIC.PlaceTree(root, d.DirMode, read)
		if inherits {
			d.NIC.Tree.Adopt()
		}
	case inherits: // the other daemon still writes its counters
		d.continueTree = func() error {
			err := d.NIC.ContinueTree(root, d.DirMode, read)
			d.tree = d.NIC.Tree
			return err
		}
		return nil
	default:
		if err := d.NIC.WriteTree(root, d.DirMode, read); err != nil {
			return err
		}
	}
	d.tree = d.NIC.Tree
	return nil
}

// close undoes openListener and writeTree.
func (d *listener) close() error {
	d.socket.Close()
	switch {
	case d.tree == nil:
		return nil
	case d.Rests:
		d.tree.Leave()
		return nil
	}
	return d.tree.Remove()
}

// clearStale removes a socket whose daemon has ended. Package launch has decided already which daemon may own the path.
// This protects against mistakes.
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

// A listenerSet is the listeners of a server.
type listenerSet struct {
	mu   sync.Mutex
	list []*listener // guarded by mu; the first is the daemon's own, and stays
}

// all returns the listeners.
func (t *listenerSet) all() []*listener {
	t.mu.Lock()
	defer t.mu.Unlock()
	return slices.Clone(t.list)
}

// first is the listener of the daemon itself.
func (t *listenerSet) first() *listener {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.list[0]
}

func (t *listenerSet) add(d *listener) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.list = append(t.list, d)
}

func (t *listenerSet) remove(gone map[*listener]bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.list = slices.DeleteFunc(t.list, func(d *listener) bool { return gone[d] })
}

// of returns the first listener of a NIC; nil: it has none.
func (t *listenerSet) of(n *registry.NIC) *listener {
	for _, d := range t.all() {
		if d.NIC == n {
			return d
		}
	}
	return nil
}

// ofAll returns the listeners of NICs.
func (t *listenerSet) ofAll(nics []*registry.NIC) (out []*listener) {
	wanted := make(map[*registry.NIC]bool, len(nics))
	for _, n := range nics {
		wanted[n] = true
	}
	for _, d := range t.all() {
		if d.NIC != nil && wanted[d.NIC] {
			out = append(out, d)
		}
	}
	return out
}
