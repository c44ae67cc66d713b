package provision

import (
	"cmp"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"sync"
	"syscall"
	"time"

	"vrdma.dev/vrdma/internal/client/credentials"
	"vrdma.dev/vrdma/internal/events"
	"vrdma.dev/vrdma/internal/net/netns"
	"vrdma.dev/vrdma/internal/net/vswitch"
	"vrdma.dev/vrdma/internal/tenancy/tenant"
)

// A container has a NIC of a network with way vxlan as an ordinary interface, too: a tap in its network namespace,
// whose other end is the NIC's port in the switch. So sockets reach the NIC's address as RDMA does.
//
//	hook, CNI ── Bind ──▶ Plug ──▶ tap, until Unplug, or until the path to the namespace leads elsewhere
//	first program of a container without hooks ── tapFor ──▶ tap, until the container's first process has ended
//
// The tap's file keeps the namespace alive, so the daemon checks whether the container still exists. When a daemon ends
// the interface stays, without a carrier, and the next daemon takes it over.

// An InterfaceConfig says in which container a NIC becomes an interface.
type InterfaceConfig struct {
	Namespace string // a path to it, valid while the container exists
	Cookie    uint64 // of the namespace
	Interface string // its name; "": vrdma0, or the next that is free
	Who       string // the container's name
}

// An Interface is the result.
type Interface struct {
	Name, MAC string
	MTU       int
	Addresses []netip.Prefix
}

// A tap is a NIC as an interface of a container.
type tap struct {
	config InterfaceConfig
	inode  string    // the namespace at Namespace
	is     Interface // its name is guarded by switchPort.mu
	file   *os.File
	gone   chan struct{}
	once   sync.Once
}

// forget removes the interface, not only its carrier.
func (t *tap) forget() {
	t.once.Do(func() {
		netns.ForgetTap(t.file) // fails if it is closed
		t.file.Close()
	})
}

// endTime bounds the wait for the removal of an interface. ServeTap notices a closed file within milliseconds.
const endTime = 10 * time.Second

// end removes the interface and waits until it is gone.
func (t *tap) end() {
	t.forget()
	select {
	case <-t.gone:
	case <-time.After(endTime):
	}
}

var errRemoved = errors.New("the NIC has been removed")

// ErrNoPort is the error for a NIC that cannot be an interface.
var ErrNoPort = errors.New("it is not in a network with way vxlan")

// Plug makes a NIC an interface of a container, or finds the interface. After an error the container has the NIC
// without an interface, and only RDMA reaches its address. A *tenant.InUse says that the container cannot have the NIC
// at all. It may be called at any time.
func (r *Provisioner) Plug(k tenant.Key, c InterfaceConfig) (Interface, error) {
	s := r.find(k)
	if s == nil {
		return Interface{}, fmt.Errorf("%v is not on this host", k)
	}
	if s.ethernet == nil {
		return Interface{}, ErrNoPort
	}
	if err := r.claimSoon(k); err != nil {
		return Interface{}, &tenant.InUse{NIC: k, By: []string{err.Error()}}
	}
	space, err := netns.At(c.Namespace)
	if err != nil {
		return Interface{}, err
	}
	defer space.Close()
	if space.Cookie() != c.Cookie {
		return Interface{}, fmt.Errorf("%s now leads to another network namespace", c.Namespace)
	}
	return s.ethernet.tap(space, c)
}

// claimTime is how long a container waits until another host has released its NIC: the host does that shortly after its
// programs have ended. claimMost bounds the wait for a store that does not answer. An engine kills our hook after ten
// seconds (container.Hooks) and does not report why.
const (
	claimTime = 3 * time.Second
	claimMost = 6 * time.Second
)

// claimSoon claims a NIC for this host.
func (h *host) claimSoon(k tenant.Key) error {
	if h.cfg.Placement == nil {
		return nil
	}
	return soon(func() error { return h.cfg.Placement.Claim(k) }, claimTime, claimMost)
}

// soon calls claim until it succeeds or has failed for a while. It does not wait for a call that hangs. Such a call
// goes on by itself, and the control plane releases an unused NIC again.
func soon(claim func() error, while, most time.Duration) error {
	done := make(chan error, 1)
	go func() {
		pause := time.Millisecond
		for end := time.Now().Add(while); ; time.Sleep(pause) {
			if err := claim(); err == nil || time.Now().After(end) {
				done <- err
				return
			}
			pause = min(2*pause, 50*time.Millisecond)
		}
	}()
	timer := time.NewTimer(most)
	defer timer.Stop()
	select {
	case err := <-done:
		return err
	case <-timer.C:
		return fmt.Errorf("the store did not say within %v whether another host has it", most)
	}
}

// Plugged reports whether a NIC is an interface of the container with that namespace. It may be called at any time.
func (r *Provisioner) Plugged(k tenant.Key, cookie uint64) bool {
	s := r.find(k)
	if s == nil || s.ethernet == nil {
		return false
	}
	s.ethernet.mu.Lock()
	defer s.ethernet.mu.Unlock()
	return s.ethernet.plugged != nil && s.ethernet.plugged.config.Cookie == cookie
}

// Unplug removes the interface of a NIC from the container with that namespace. It may be called at any time.
func (r *Provisioner) Unplug(k tenant.Key, cookie uint64) {
	if s := r.find(k); s != nil {
		s.ethernet.unplugTap(func(t *tap) bool { return t.config.Cookie == cookie })
	}
}

// Withdraw removes the interface of a NIC from whatever container has it. back makes it again, if there was one. Both may be called
// at any time.
func (r *Provisioner) Withdraw(k tenant.Key) (back func() error) {
	back = func() error { return nil }
	s := r.find(k)
	if s == nil || s.ethernet == nil {
		return back
	}
	s.ethernet.unplugTap(func(t *tap) bool {
		c := t.config
		back = func() error { _, err := r.Plug(k, c); return err }
		return true
	})
	return back
}

// tapFor makes the NIC an interface of the container of conn's peer, for containers without a hook. It logs a failure
// once for each container.
func (g *switchPort) tapFor(conn syscall.Conn) {
	own, err := credentials.OwnCookie()
	if err != nil {
		return
	}
	cookie, err := credentials.NamespaceCookie(conn)
	if err != nil || cookie == own {
		return // the host's network, which other programs use, too
	}
	if g.host.cfg.Workloads != nil && g.host.cfg.Workloads.Plugs(g.of.key) {
		return // the engine names the interface
	}
	g.mu.Lock()
	there := g.plugged != nil && g.plugged.config.Cookie == cookie || g.runs != nil
	g.mu.Unlock()
	if there {
		return
	}
	is, err := g.tapOf(conn)
	switch {
	case errors.Is(err, errNoContainer):
	case err == nil:
		g.host.cfg.Log.Info("a container has a NIC as an interface", "nic", g.of.key.Path(), "interface", is.Name)
	case g.complain(cookie):
		g.host.cfg.Log.Warn(events.OnlyRDMA, "nic", g.of.key.Path(), "why", err)
		g.host.cfg.Events.Record(events.NoInterface(g.of.key, err))
	}
}

// complain reports whether the missing interface of a container has not been logged yet.
func (g *switchPort) complain(cookie uint64) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	told := g.told == cookie
	g.told = cookie
	return !told
}

// errNoContainer is the error for a program in the host's network, where the daemon is not.
var errNoContainer = errors.New("its network namespace is that of the host's first process")

// tapOf is tap for the namespace of conn's peer.
func (g *switchPort) tapOf(conn syscall.Conn) (Interface, error) {
	space, err := netns.Of(conn)
	if err != nil {
		return Interface{}, err
	}
	defer space.Close()
	path, err := credentials.First(conn)
	if err != nil {
		return Interface{}, fmt.Errorf("its network namespace cannot be watched: %w", err)
	}
	if path == "/proc/1/ns/net" {
		return Interface{}, errNoContainer
	}
	return g.tap(space, InterfaceConfig{Namespace: path, Cookie: space.Cookie(), Who: "a container"})
}

// tap makes the interface and serves it.
func (g *switchPort) tap(space *netns.Space, c InterfaceConfig) (Interface, error) {
	g.tapping.Lock()
	defer g.tapping.Unlock()
	g.mu.Lock()
	old, closed := g.plugged, g.closed
	var is Interface
	if old != nil {
		is = old.is
	}
	g.mu.Unlock()
	if closed {
		return Interface{}, errRemoved
	}
	if old != nil && old.config.Cookie == c.Cookie && (c.Interface == "" || c.Interface == is.Name) {
		return is, nil
	}
	if old != nil { // a previous container's: the NIC belongs to this one now
		old.end()
	}
	inode, err := credentials.NamespaceAt(c.Namespace)
	if err != nil {
		return Interface{}, err
	}
	if name, err := space.Name(); err != nil || name != inode {
		return Interface{}, fmt.Errorf("%s now leads to another network namespace", c.Namespace)
	}
	t := &tap{config: c, inode: inode, is: g.interfaceOf(), gone: make(chan struct{})}
	t.file, t.is.Name, err = space.Tap(netns.Tap{Name: c.Interface, MAC: g.port.MAC, MTU: g.mtu, Addresses: t.is.Addresses})
	if err != nil {
		return Interface{}, err
	}
	is = t.is
	if err := g.serveTap(t); err != nil {
		t.forget()
		return Interface{}, err
	}
	g.showInterface()
	return is, nil
}

// interfaceOf is the interface that the NIC becomes, without its name.
func (g *switchPort) interfaceOf() Interface {
	is := Interface{MAC: g.port.MAC.String(), MTU: g.mtu}
	for _, a := range g.port.Addrs {
		is.Addresses = append(is.Addresses, netip.PrefixFrom(a, bitsOf(a, g.port.Subnets)))
	}
	return is
}

// showInterface sets the interface name of the device's addresses. libibverbs looks for the interface of that name.
func (g *switchPort) showInterface() {
	g.showing.Lock()
	defer g.showing.Unlock()
	g.mu.Lock()
	name := ""
	if g.plugged != nil {
		name = g.plugged.is.Name
	}
	g.mu.Unlock()
	n := g.of.nic
	g.host.onLoop(func() { n.Device.SetNetDev(name) }) // fails only after the loop has ended
	if err := n.Tree.Renew(); err != nil {
		g.host.cfg.Log.Warn("the device tree of a NIC does not say which interface it is", "nic", n.Name, "interface", name, "error", err)
	}
}

// bitsOf is the prefix length of the subnet of an address.
func bitsOf(a netip.Addr, subnets []netip.Prefix) int {
	for _, p := range subnets {
		if p.Contains(a) {
			return p.Bits()
		}
	}
	return a.BitLen()
}

// serveTap serves a tap until it is closed.
func (g *switchPort) serveTap(t *tap) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.closed {
		return errRemoved
	}
	if g.who != "" || g.runs != nil {
		return fmt.Errorf("%w: %s has it", vswitch.ErrTaken, cmp.Or(g.who, "a virtual machine"))
	}
	g.who, g.plugged = cmp.Or(t.config.Who, "a container"), t
	go g.watch(t)
	go func() {
		err := g.port.ServeTap(t.file)
		t.forget()
		g.mu.Lock()
		if g.plugged == t {
			g.who, g.plugged = "", nil
		}
		name := t.is.Name
		g.mu.Unlock()
		close(t.gone)
		g.showInterface()
		if err != nil {
			g.host.cfg.Log.Warn("a container's interface does not work any more", "nic", g.port.NIC, "interface", name, "why", err)
		}
	}()
	return nil
}

// there reports whether the container still exists.
func (t *tap) there() bool {
	now, err := credentials.NamespaceAt(t.config.Namespace)
	return err == nil && now == t.inode
}

// watchTime is how often watch checks whether a container still exists: the tap keeps its namespace alive.
const watchTime = 500 * time.Millisecond

// renamed updates the name of the interface, and reports whether the container has changed it.
func (g *switchPort) renamed(t *tap) bool {
	name, err := netns.TapName(t.file)
	if err != nil {
		return false // the interface is gone
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	other := name != t.is.Name
	t.is.Name = name
	return other
}

// watch removes a tap when its container has ended, and follows the interface's name.
func (g *switchPort) watch(t *tap) {
	tick := time.NewTicker(watchTime)
	defer tick.Stop()
	for {
		select {
		case <-t.gone:
			return
		case <-tick.C:
			if !t.there() {
				t.forget()
				return
			}
			if g.renamed(t) {
				g.showInterface()
			}
		}
	}
}

// unplugTap removes the interface if meant returns true, and waits until it is gone.
func (g *switchPort) unplugTap(meant func(*tap) bool) {
	if g == nil {
		return
	}
	g.mu.Lock()
	t := g.plugged
	g.mu.Unlock()
	if t != nil && meant(t) {
		t.end()
	}
}
