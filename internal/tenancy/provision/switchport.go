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
	"time"

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

// A switchPort connects a NIC to the switch, where one virtual machine or one container at a time has it. A nil switchPort is
// that of a NIC without a port.
type switchPort struct {
	host *host
	of   *hostedNIC
	port *vswitch.Port
	mtu  int

	mu       sync.Mutex // guards the fields below
	listener *net.UnixListener
	closed   bool
	machines []*machine // whose QEMU is connected
	runs     *machine   // has the NIC, or is about to get it; nil: none
	refused  time.Time  // when a machine did not get the NIC
	who      string     // the user of the NIC; "": there is none
	plugged  *tap       // nil: no container has the NIC as an interface
	told     uint64     // the namespace whose missing interface was logged

	tapping sync.Mutex // held while an interface is made, and while the NIC stands still (succession.go)
	showing sync.Mutex // held while the device gets the name of the interface; before mu
}

// A machine is a virtual machine whose QEMU is connected. It has the NIC while the rings of its card run, and its host is the NIC's host.
// While a guest migrates, the QEMU at the destination is connected and waits:
//
//	source       rings run ── QEMU stops them: stop ── Release ──▶ QEMU sends the last pages
//	destination  connected ───────────────────────────────────────▶ QEMU starts the rings: start ── Claim
//
// If the migration fails, QEMU starts the rings at the source again. Both hosts can be the same.
type machine struct {
	who   string
	name  string // "": it has none
	conn  *net.UnixConn
	agent bool // package vm hands over the card, with the rest of the machine
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
	return g.usersLocked()
}

// usersLocked is users with mu held.
func (g *switchPort) usersLocked() []string {
	if g.who == "" || g.plugged != nil && !g.plugged.there() {
		return nil
	}
	return []string{g.who}
}

// connected names users, and the virtual machines that wait for the NIC.
func (g *switchPort) connected() []string {
	if g == nil {
		return nil
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	out := g.usersLocked()
	for _, m := range g.machines {
		if m != g.runs || g.who == "" {
			out = append(out, m.who+", whose card does not run")
		}
	}
	return out
}

// AttachedCount is the number of virtual machines and containers that are connected with NICs through the switch. It may be called at
// any time.
func (r *Provisioner) AttachedCount() (n int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, s := range r.nics {
		n += len(s.ethernet.connected())
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
		for _, who := range s.ethernet.connected() {
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
		if s.ethernet.who != "" && s.ethernet.runs != nil {
			out[s.nic] = "machine " + cmp.Or(s.ethernet.runs.name, "without a name")
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

// allow sets the mode of the socket after spec.open has changed, and disconnects virtual machines that may not have the
// NIC any more.
func (g *switchPort) allow() error {
	if g == nil {
		return nil
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	for _, m := range g.machines {
		if g.admit(m.conn) != nil { // it may have connected at another socket: ServeCard
			m.conn.Close()
		}
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
	if err := g.attach(c, new(vhostuser.Device), nil, false); err != nil {
		g.host.cfg.Log.Warn("a virtual machine cannot have a NIC, or not any more", "nic", g.port.NIC, "why", err)
	}
}

// attach serves a virtual machine, with an agent or without one, until the connection ends.
func (g *switchPort) attach(c *net.UnixConn, d *vhostuser.Device, ready func(*vhostuser.Conn), agent bool) error {
	m, ok := g.enter(c, agent)
	if !ok {
		return errRemoved
	}
	defer g.leave(m)
	g.follow(m, d)
	return g.port.Serve(c, d, ready)
}

// follow makes a machine have the NIC while the rings of its card run.
func (g *switchPort) follow(m *machine, d *vhostuser.Device) {
	stops := d.Stops
	d.Starts = func(*vhostuser.Conn) error { return g.start(m) }
	d.Stops = func(c *vhostuser.Conn) {
		if stops != nil {
			stops(c)
		}
		g.stop(m)
	}
}

// start gives a machine the NIC.
func (g *switchPort) start(m *machine) error {
	g.mu.Lock()
	taken, wait := g.closed || g.who != "" || g.runs != nil, claimTime
	if time.Since(g.refused) < 2*claimTime {
		wait = 0 // QEMU, which waits for an answer meanwhile, connects again every second
	}
	if !taken {
		g.runs = m
	}
	g.mu.Unlock()
	if taken {
		return vswitch.ErrTaken
	}
	err := g.claim(wait)
	g.mu.Lock()
	if err == nil {
		g.who = m.who
	}
	g.mu.Unlock()
	if err == nil {
		err = g.claim(0) // until users has named it, the control plane releases the NIC as unused
	}
	g.mu.Lock()
	if g.refused = (time.Time{}); err != nil {
		g.runs, g.who, g.refused = nil, "", time.Now()
	}
	g.mu.Unlock()
	if err == nil {
		g.host.cfg.Log.Info("a virtual machine has a NIC", "nic", g.port.NIC, "who", m.who)
	}
	return err
}

// claim claims the NIC for this host. At the end of a migration the other host has just released it.
func (g *switchPort) claim(wait time.Duration) error {
	if g.host.cfg.Placement == nil {
		return nil
	}
	return soon(func() error { return g.host.cfg.Placement.Claim(g.of.key) }, wait, claimMost)
}

// releaseMost is how long QEMU waits until the store says that a NIC has left this host. If it does not, the control plane tries again.
const releaseMost = 2 * time.Second

// stop takes the NIC from a machine. When QEMU gets its answer, another host can have the NIC.
func (g *switchPort) stop(m *machine) {
	g.mu.Lock()
	had := g.runs == m
	if had {
		g.runs, g.who = nil, ""
	}
	g.mu.Unlock()
	if !had {
		return
	}
	log := g.host.cfg.Log.With("nic", g.port.NIC, "who", m.who)
	if g.host.cfg.Placement != nil {
		if err := soon(func() error { return g.host.cfg.Placement.Release(g.of.key) }, 0, releaseMost); err != nil {
			log.Warn("the NIC of a virtual machine whose card has stopped is not released yet", "why", err)
		}
	}
	log.Info("the card of a virtual machine has stopped")
}

// ServeCard is vhostuser.Serve for a virtual machine that has a NIC. The card is connected to the switch if the NIC's
// network has way vxlan; otherwise it carries nothing. The caller has admitted the peer. It may be called at any time.
func (r *Provisioner) ServeCard(k tenant.Key, c *net.UnixConn, d *vhostuser.Device, ready func(*vhostuser.Conn)) error {
	if s := r.find(k); s != nil && s.ethernet != nil {
		return s.ethernet.attach(c, d, ready, true)
	}
	return vhostuser.Serve(c, d, ready)
}

// describe describes the machine at a connection.
func describe(c *net.UnixConn, agent bool) *machine {
	m := &machine{who: "a virtual machine", conn: c, agent: agent}
	if cred, err := credentials.Credentials(c); err == nil {
		m.name = credentials.MachineName(c, int(cred.Pid))
		m.who = fmt.Sprintf("virtual machine %s (pid %d, uid %d)", cmp.Or(m.name, "without a name"), cred.Pid, cred.Uid)
	}
	return m
}

// enter adds the machine at a connection. It returns false if the NIC has been removed.
func (g *switchPort) enter(c *net.UnixConn, agent bool) (*machine, bool) {
	m := describe(c, agent)
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.closed {
		return nil, false
	}
	g.machines = append(g.machines, m)
	return m, true
}

// leave removes a machine whose connection has ended.
func (g *switchPort) leave(m *machine) {
	g.mu.Lock()
	g.machines = slices.DeleteFunc(g.machines, func(o *machine) bool { return o == m })
	g.mu.Unlock()
	g.host.cfg.Log.Info("a virtual machine has gone", "nic", g.port.NIC, "who", m.who)
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
	return s.ethernet.who != "" && s.ethernet.runs != nil
}
