package provision

import (
	"errors"
	"fmt"
	"net/netip"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"vrdma.dev/vrdma/internal/budget"
	"vrdma.dev/vrdma/internal/device/nic"
	"vrdma.dev/vrdma/internal/device/registry"
	"vrdma.dev/vrdma/internal/ib"
	"vrdma.dev/vrdma/internal/net/netns"
	"vrdma.dev/vrdma/internal/net/roce"
	"vrdma.dev/vrdma/internal/net/routes"
	"vrdma.dev/vrdma/internal/tenancy/tenant"
)

// In a network with way namespace a NIC is like an interface of its container. It has the addresses of the container's
// interfaces. Its packets leave through UDP sockets in the container's network namespace, so that the namespace's
// routes and filters apply. Only the kernel assigns these addresses. The daemon reads them when the first program of a
// workload opens the NIC, and again whenever the kernel reports a change (readdress.go).
//
//	unused: no address ── a workload's first program ──▶ attached: addresses, sockets, routes ◀─┐ the kernel reports
//	                   ◀── its last program ended ─────                                         └─ a change
//
// The sockets keep the namespace alive, so they are closed with the last program.

// A namespacePort connects one NIC to the network namespace of its workload.
type namespacePort struct {
	host   *host
	shared *namespaces
	nic    *registry.NIC // set before the listener of the NIC opens
	number ib.NetworkID
	routes namespaceRoutes
	mtu    int // of the network; 0: that of the interfaces

	// The listener calls attach and detach one after the other, and the Provisioner calls detach once more at the end. mu is
	// never held while a container can delay the holder.
	mu    sync.Mutex  // guards the fields below
	now   *attachment // nil: the NIC is not attached
	last  *attachment // the previous one, or now
	udp   *roce.UDP   // the sockets that the engine has; nil: none
	rows  []row       // the GID table; nil: the addresses have not been read yet
	stale bool        // the engine does not have everything that rows says
}

// An attachment is what is open in a namespace while a NIC is attached to it. One goroutine uses it: first that of
// attach, then that of follow, which also closes it, after the namespacePort has let go of it.
type attachment struct {
	shared *namespaces
	space  *netns.Space
	maker  *netns.Maker
	there  *routes.Elsewhere
	watch  *routes.Watch
	warned map[string]bool // texts that have been logged
	ended  chan struct{}   // closed at the end of close
}

const (
	// lastTime is how long the next attachment waits for the end of the last one, and leaveTime how long detach waits.
	// Usually there is no wait, but a refresh may wait for a helper process.
	lastTime  = 15 * time.Second
	leaveTime = 100 * time.Millisecond
)

// close closes everything.
func (st *attachment) close() {
	if st.watch != nil {
		st.watch.Close()
	}
	if st.there != nil {
		st.there.Close()
	}
	st.maker.Close()
	st.shared.drop(st.space.Cookie())
	st.space.Close()
	close(st.ended)
}

// over waits until the attachment is closed, and reports whether it is. It may be nil.
func (st *attachment) over(within time.Duration) bool {
	if st == nil {
		return true
	}
	select {
	case <-st.ended:
		return true
	case <-time.After(within):
		return false
	}
}

// namespaceRoutes implements registry.Routes.
type namespaceRoutes struct {
	now atomic.Pointer[routes.Elsewhere]
}

func (s *namespaceRoutes) From(from, to netip.Addr) (netip.Addr, error) {
	if e := s.now.Load(); e != nil {
		return e.From(from, to)
	}
	return netip.Addr{}, syscall.ENETUNREACH
}

func (s *namespaceRoutes) Reach(from, to netip.Addr, timeout time.Duration) error {
	if e := s.now.Load(); e != nil {
		return e.Reach(from, to, timeout)
	}
	return syscall.ENETUNREACH
}

// namespaces are the network namespaces that NICs of this host are attached to.
type namespaces struct {
	count uint32      // of namespacePorts so far
	pace  budget.Pace // of changes of addresses, over all containers

	mu sync.Mutex
	of map[uint64]string // guarded by mu: the NIC's name by the namespace's cookie
}

// take assigns a namespace to a NIC.
func (s *namespaces) take(cookie uint64, name string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if by := s.of[cookie]; by != "" && by != name {
		return fmt.Errorf("NIC %s has this network namespace already, and UDP port %d there: give the container one NIC with way namespace", by, 4791)
	}
	if s.of == nil {
		s.of = make(map[uint64]string)
	}
	s.of[cookie] = name
	return nil
}

func (s *namespaces) drop(cookie uint64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.of, cookie)
}

// newNamespacePort returns the namespacePort of a NIC; nil: its network does not have way namespace.
func (r *Provisioner) newNamespacePort(n *tenant.Network) *namespacePort {
	if n.Spec.Way != tenant.WayNamespace {
		return nil
	}
	r.namespaces.count++
	return &namespacePort{host: r.host, shared: &r.namespaces, number: ib.NamespaceNetwork(r.namespaces.count), mtu: n.Spec.MTU}
}

// attach gives the NIC the addresses and sockets of the network namespace of conn's peer.
func (p *namespacePort) attach(conn syscall.Conn) (err error) {
	p.mu.Lock()
	last := p.last
	p.mu.Unlock()
	if !last.over(lastTime) {
		return fmt.Errorf("NIC %s is still leaving the network namespace of the previous container: try again", p.nic.Name)
	}
	st, err := p.open(conn)
	if err != nil {
		return err
	}
	p.mu.Lock()
	p.now, p.last = st, st
	p.routes.now.Store(st.there)
	p.mu.Unlock()
	defer func() {
		if err != nil {
			p.takeOut()
			st.close()
		}
	}()
	if _, err := p.look(st); err != nil {
		return err
	}
	if err := p.nic.Tree.Rewrite(); err != nil {
		return err
	}
	p.mu.Lock()
	outward := outwardOf(p.rows)
	p.mu.Unlock()
	p.host.cfg.Log.Info("a NIC has the network of a container", "nic", p.nic.Name, "addresses", outward, "mtu", 128<<p.nic.Device.Face().MTU)
	if len(outward) == 0 {
		p.host.cfg.Log.Warn("a NIC's container has no network: only the container's own programs reach each other", "nic", p.nic.Name)
	}
	go p.follow(st, 0)
	return nil
}

// open opens what an attachment needs in the namespace of conn's peer.
func (p *namespacePort) open(conn syscall.Conn) (_ *attachment, err error) {
	space, err := netns.Of(conn)
	if err != nil {
		return nil, err
	}
	if err := p.shared.take(space.Cookie(), p.nic.Name); err != nil {
		space.Close()
		return nil, err
	}
	st := &attachment{shared: p.shared, space: space, maker: netns.NewMaker(space), warned: make(map[string]bool), ended: make(chan struct{})}
	if st.there, err = openElsewhere(space); err == nil {
		st.watch, err = openWatch(space) // before the first refresh, so that no change is missed
	}
	if err != nil {
		st.close()
		return nil, err
	}
	return st, nil
}

// family is 0 for IPv4 and 1 for IPv6.
func family(a netip.Addr) int {
	if a.Is4() {
		return 0
	}
	return 1
}

// openElsewhere opens the sockets to the namespace's kernel.
func openElsewhere(space *netns.Space) (*routes.Elsewhere, error) {
	fds, err := space.Open([]netns.Kind{netns.Netlink, netns.UDP4, netns.UDP6})
	if errors.Is(err, unix.EAFNOSUPPORT) { // a kernel without IPv6
		if fds, err = space.Open([]netns.Kind{netns.Netlink, netns.UDP4}); err == nil {
			fds = append(fds, -1)
		}
	}
	if err != nil {
		return nil, err
	}
	return routes.NewElsewhere(fds[0], fds[1], fds[2], func() (int, error) { return openNetlink(space) }), nil
}

// openNetlink opens one netlink socket.
func openNetlink(space *netns.Space) (int, error) {
	fds, err := space.Open([]netns.Kind{netns.Netlink})
	if err != nil {
		return -1, err
	}
	return fds[0], nil
}

// detach undoes attach. It may be called again.
func (p *namespacePort) detach() {
	if st := p.takeOut(); st != nil {
		st.over(leaveTime) // otherwise a refresh is still running, and close follows it
	}
}

// attached reports whether the NIC is in a network namespace. p may be nil.
func (p *namespacePort) attached() bool {
	if p == nil {
		return false
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.now != nil
}

// takeOut removes the NIC from its namespace; nil: it was in none. The goroutine that uses the attachment closes it.
func (p *namespacePort) takeOut() *attachment {
	p.mu.Lock()
	defer p.mu.Unlock()
	st := p.now
	if st == nil {
		return nil
	}
	p.host.onLoop(func() { // fails only after the loop has ended
		if p.udp != nil {
			p.host.cfg.Engine.RemoveNamespace(p.nic.Device, p.number)
		}
		p.host.cfg.NICs.SetFace(p.nic, nic.Face{MTU: nic.LargestMTU})
	})
	p.routes.now.Store(nil)
	st.watch.Close()
	p.now, p.udp, p.rows, p.stale = nil, nil, nil, false
	if err := p.nic.Tree.Rewrite(); err != nil {
		p.host.cfg.Log.Warn("the device tree of a NIC has the addresses of a container that is gone", "nic", p.nic.Name, "error", err)
	}
	return st
}
