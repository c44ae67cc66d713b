package provision

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"slices"
	"sync"

	"vrdma.dev/vrdma/internal/client/credentials"
	"vrdma.dev/vrdma/internal/client/protocol"
	"vrdma.dev/vrdma/internal/device/nic"
	"vrdma.dev/vrdma/internal/device/registry"
	"vrdma.dev/vrdma/internal/net/overlay"
	"vrdma.dev/vrdma/internal/net/vhostuser"
	"vrdma.dev/vrdma/internal/net/vswitch"
	"vrdma.dev/vrdma/internal/tenancy/policy"
	"vrdma.dev/vrdma/internal/tenancy/tenant"
)

// A NIC of a network with way vxlan has a port in the switch (package vswitch). A virtual machine has it as a network
// card: QEMU connects to guest.sock in the NIC's directory and speaks vhost-user there (package vhostuser). A container
// has it as an interface (tap.go).
//
// The socket is made on request (vrdma guest args), because an unused NIC holds one descriptor only. It stays when the
// daemon ends, and the next daemon opens it again.

// A switchPort connects a NIC to the switch, where one virtual machine or one container has it. A nil switchPort is
// that of a NIC without a port.
type switchPort struct {
	host *host
	of   *hostedNIC
	port *vswitch.Port
	mtu  int

	mu       sync.Mutex // guards the fields below
	listener *net.UnixListener
	closed   bool
	who      string // the user of the port; "": there is none
	name     string // the name of the virtual machine; "": it has none
	conn     *net.UnixConn
	plugged  *tap   // nil: no container has the NIC as an interface
	told     uint64 // the namespace whose missing interface was logged

	tapping sync.Mutex // held while an interface is made, and while the NIC stands still (succession.go)
	showing sync.Mutex // held while the device gets the name of the interface; before mu
}

// plugIn gives a NIC its port in the switch.
func (r *Provisioner) plugIn(s *hostedNIC, t *tenant.Tenant, n *tenant.Network, c *tenant.NIC) (err error) {
	if r.cfg.Switch == nil || s.made.network == registry.HostNetwork || s.namespace != nil {
		return nil
	}
	g := &switchPort{host: r.host, of: s, mtu: r.packetMTU(n)}
	addrs := c.Addresses()
	g.port, err = r.cfg.Switch.Plug(vswitch.PortConfig{
		NIC: s.key.Path(), Network: s.made.network, MAC: overlay.MACOf(addrs[0]), Addrs: addrs, Subnets: n.Spec.Subnets, MTU: g.mtu,
		InUse: func() bool { return s.programs.Load() > 0 }, // the loop calls it
	})
	if err != nil {
		return err
	}
	s.ethernet = g
	s.port.Store(g.port)
	g.rate(c)
	r.accounts.rate(t)
	g.guard(s.guard)
	if !r.cfg.Succeeds {
		g.reopen()
	}
	return nil
}

// reopen opens the socket for virtual machines again if an earlier daemon made it.
func (g *switchPort) reopen() {
	if info, err := os.Lstat(g.of.place.Guest()); err == nil && info.Mode().Type() == fs.ModeSocket {
		if _, err := g.card(); err != nil {
			g.host.cfg.Log.Warn("a virtual machine cannot have its NIC", "nic", g.of.key.Path(), "error", err)
		}
	}
}

// frames implements registry.NIC.Frames.
func (s *hostedNIC) frames() (f registry.Frames) {
	p := s.port.Load()
	if p == nil {
		return f
	}
	c := &p.Counters
	f = registry.Frames{Sent: c.SentFrames.Load(), SentBytes: c.SentBytes.Load(), Rcvd: c.ReceivedFrames.Load(), RcvdBytes: c.ReceivedBytes.Load(), Time: c.Time.Load(), Attached: p.Attached(), RoCE: p.RoCE()}
	f.Drops[nic.DropSpoof] = c.Spoofed.Load()
	f.Drops[nic.DropPolicy] = c.Denied.Load()
	f.Drops[nic.DropMalformed] = c.Malformed.Load()
	f.Drops[nic.DropBuffer] = c.NoBuffer.Load()
	f.Drops[nic.DropNoNIC] = c.NoMember.Load()
	f.Drops[nic.DropCap] = c.Capped.Load()
	return f
}

// rate applies the declared rate of a NIC.
func (g *switchPort) rate(c *tenant.NIC) {
	if g != nil {
		g.port.SetRate(bytesOf(c.Spec.Rate.Out), bytesOf(c.Spec.Rate.In), uint64(c.Spec.Rate.Burst))
	}
}

// rate applies a tenant's rate to the frames of all its NICs together.
func (l *accounts) rate(t *tenant.Tenant) {
	if l.host.cfg.Switch != nil {
		l.host.cfg.Switch.SetRate(t.Metadata.Name, bytesOf(t.Spec.Rate.Out), bytesOf(t.Spec.Rate.In), uint64(t.Spec.Rate.Burst))
	}
}

// guard sets the rules; nil: everything is allowed.
func (g *switchPort) guard(rules *policy.Guard) {
	switch {
	case g == nil:
	case rules == nil:
		g.port.SetGuard(nil)
	default:
		g.port.SetGuard(rules)
	}
}

// users names the virtual machine or the container that has the NIC.
func (g *switchPort) users() []string {
	if g == nil {
		return nil
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.who == "" || g.plugged != nil && !g.plugged.there() {
		return nil
	}
	return []string{g.who}
}

// AttachedCount is the number of NICs that a virtual machine or a container has through the switch. It may be called at
// any time.
func (r *Provisioner) AttachedCount() (n int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, s := range r.nics {
		n += len(s.ethernet.users())
	}
	return n
}

// Obstacles describes the NICs that cannot be handed over to a next daemon that takes over those of containers, or of
// virtual machines without an agent, or not. It may be called at any time.
func (r *Provisioner) Obstacles(containers, machines bool) (out []string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, s := range r.nics {
		if s.namespace.attached() && !containers {
			out = append(out, fmt.Sprintf("NIC %s has the addresses of a container", s.nic.Name))
		}
		for _, who := range s.ethernet.users() {
			taken := machines
			if s.ethernet.contained() {
				taken = containers
			}
			if !taken {
				out = append(out, fmt.Sprintf("NIC %s is an interface of %s", s.nic.Name, who))
			}
		}
	}
	slices.Sort(out)
	return out
}

// contained reports whether a container has the port.
func (g *switchPort) contained() bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.plugged != nil
}

// Guests returns the names of the virtual machines that have NICs. It may be called at any time.
func (r *Provisioner) Guests() map[*registry.NIC]string {
	r.mu.Lock()
	defer r.mu.Unlock()
	out := make(map[*registry.NIC]string)
	for _, s := range r.nics {
		if s.ethernet == nil {
			continue
		}
		s.ethernet.mu.Lock()
		if s.ethernet.who != "" && s.ethernet.plugged == nil {
			out[s.nic] = "machine " + cmp.Or(s.ethernet.name, "without a name")
		}
		s.ethernet.mu.Unlock()
	}
	return out
}

// card opens the socket and returns how a virtual machine is started with the NIC. It implements
// server.Listener.OpenGuest.
func (g *switchPort) card() (protocol.GuestCard, error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	c := protocol.GuestCard{NIC: g.port.NIC, Network: g.port.Network, MAC: g.port.MAC.String(), MTU: g.mtu, Socket: g.of.place.Guest()}
	for _, a := range g.port.Addrs {
		c.Addresses = append(c.Addresses, a.String())
	}
	switch {
	case g.closed:
		return c, errors.New("the NIC has been removed")
	case g.listener != nil:
		return c, nil
	}
	// An earlier daemon may have left the socket. Only the daemon writes to this directory.
	if err := os.Remove(c.Socket); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return c, err
	}
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: c.Socket, Net: "unix"})
	if err != nil {
		return c, fmt.Errorf("the socket for virtual machines: %w", err)
	}
	l.SetUnlinkOnClose(false)
	mode, _ := g.host.modes(g.of)
	if err := os.Chmod(c.Socket, mode); err != nil {
		l.Close()
		return c, err
	}
	g.listener = l
	go g.accept(l)
	return c, nil
}

// allow sets the mode of the socket after spec.open has changed, and disconnects a virtual machine that may not have
// the NIC any more.
func (g *switchPort) allow() error {
	if g == nil {
		return nil
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.conn != nil && g.admit(g.conn) != nil { // it may have connected at another socket: ServeCard
		g.conn.Close()
	}
	if g.listener == nil {
		return nil
	}
	mode, _ := g.host.modes(g.of)
	return os.Chmod(g.of.place.Guest(), mode)
}

// accept serves each connection in its own goroutine until the socket is closed.
func (g *switchPort) accept(l *net.UnixListener) {
	for {
		c, err := l.AcceptUnix()
		if errors.Is(err, net.ErrClosed) {
			return
		}
		if errors.Is(err, os.ErrDeadlineExceeded) { // Freeze keeps connections in the socket
			g.awaitResume()
			continue
		}
		if err != nil {
			g.host.cfg.Log.Warn("a virtual machine cannot connect", "nic", g.port.NIC, "error", err)
			continue
		}
		go g.serve(c)
	}
}

// awaitResume waits while the NIC stands still.
func (g *switchPort) awaitResume() {
	g.tapping.Lock()
	defer g.tapping.Unlock()
}

// admit returns why the peer may not have the NIC. The rule is that of the NIC's listener.
func (g *switchPort) admit(c *net.UnixConn) error {
	who, err := credentials.Of(c)
	if err != nil {
		return err
	}
	home := credentials.Own()
	if who.UID == g.host.cfg.Owner && (home.Err != nil || who.HomeErr == nil && home.Stranger(&who.Home) == "") {
		return nil
	}
	return g.of.open.admit(&who, c)
}

// serve serves the connection of a virtual machine without an agent.
func (g *switchPort) serve(c *net.UnixConn) {
	defer c.Close()
	if err := g.admit(c); err != nil {
		g.host.cfg.Log.Warn("a virtual machine may not have a NIC", "nic", g.port.NIC, "why", err)
		return
	}
	if err := g.attach(c, new(vhostuser.Device), nil); err != nil {
		g.host.cfg.Log.Warn("a virtual machine cannot have a NIC, or not any more", "nic", g.port.NIC, "why", err)
	}
}

// attach gives a virtual machine the NIC until the connection ends.
func (g *switchPort) attach(c *net.UnixConn, d *vhostuser.Device, ready func(*vhostuser.Conn)) error {
	log := g.host.cfg.Log.With("nic", g.port.NIC)
	if !g.enter(c) {
		return vswitch.ErrTaken
	}
	defer g.leave()
	if g.host.cfg.Placement != nil {
		if err := g.host.cfg.Placement.Claim(g.of.key); err != nil {
			return err
		}
	}
	log.Info("a virtual machine has a NIC", "who", g.users())
	defer log.Info("a virtual machine has gone")
	return g.port.Serve(c, d, ready)
}

// ServeCard is vhostuser.Serve for a virtual machine that has a NIC. The card is connected to the switch if the NIC's
// network has way vxlan; otherwise it carries nothing. The caller has admitted the peer. It may be called at any time.
func (r *Provisioner) ServeCard(k tenant.Key, c *net.UnixConn, d *vhostuser.Device, ready func(*vhostuser.Conn)) error {
	if s := r.find(k); s != nil && s.ethernet != nil {
		return s.ethernet.attach(c, d, ready)
	}
	return vhostuser.Serve(c, d, ready)
}

// enter makes a connection the user of the port. It returns false if the port has another user.
func (g *switchPort) enter(c *net.UnixConn) bool {
	who, name := "a virtual machine", ""
	if cred, err := credentials.Credentials(c); err == nil {
		name = credentials.MachineName(c, int(cred.Pid))
		who = fmt.Sprintf("virtual machine %s (pid %d, uid %d)", cmp.Or(name, "without a name"), cred.Pid, cred.Uid)
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.closed || g.who != "" {
		return false
	}
	g.who, g.name, g.conn = who, name, c
	return true
}

func (g *switchPort) leave() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.who, g.name, g.conn = "", "", nil
}

// pull removes the port. The socket stays in the NIC's directory, and is removed with it.
func (g *switchPort) pull() {
	if g == nil {
		return
	}
	g.mu.Lock()
	g.closed = true
	if g.listener != nil {
		g.listener.Close()
		g.listener = nil
	}
	g.mu.Unlock()
	g.port.Unplug()
}

// IsGuest reports whether a virtual machine has a NIC. It may be called at any time.
func (r *Provisioner) IsGuest(k tenant.Key) bool {
	s := r.find(k)
	if s == nil || s.ethernet == nil {
		return false
	}
	s.ethernet.mu.Lock()
	defer s.ethernet.mu.Unlock()
	return s.ethernet.who != "" && s.ethernet.plugged == nil
}
