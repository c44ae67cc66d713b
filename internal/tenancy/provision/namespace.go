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

	"vrdma.dev/vrdma/internal/device/nic"
	"vrdma.dev/vrdma/internal/ib"
	"vrdma.dev/vrdma/internal/net/netns"
	"vrdma.dev/vrdma/internal/net/roce"
	"vrdma.dev/vrdma/internal/net/routes"
	"vrdma.dev/vrdma/internal/tenancy/tenant"
)

// In a network with way namespace a NIC is what an interface would be in the container that has it:
// its addresses are those of the container's interfaces, and packets leave through UDP sockets that are in
// the container's network namespace, so that its routes and filters hold for them. Nobody has such
// a NIC's addresses but its kernel: they are read when the first program of a workload opens the NIC, and
// again whenever the kernel says that they change (readdress.go).
//
//	nobody has it: no address ── a workload's first program ──▶ attached: addresses, sockets, routes ◀─┐ the kernel says
//	                         ◀── its last program ended ──────                                       └─ that they change
//
// The sockets keep the namespace alive, so they go with the last program.

// A site is that of one slot.
type namespacePort struct {
	number ib.NetworkID
	routes namespaceRoutes
	mtu    int // that the network says; 0: that of the interfaces

	// The door calls attach and detach one after the other, and the rack once more at the end. mu is never held while a container
	// can have us wait.
	mu   sync.Mutex
	now *attachment     // guarded by mu, as all below; nil: it is not attached
	last *attachment     // the one before, or this
	udp  *roce.UDP // that the engine has; nil: none
	rows []row     // what is in the GID table; nil: there was no look yet
	owed bool      // the engine could not do all that rows says
}

// A stay is what is open in a namespace while the NIC is attached to it. One goroutine uses it: that of attach, then who
// follows. That one closes it too, after it was taken from the site.
type attachment struct {
	space  *netns.Space
	maker  *netns.Maker
	there  *routes.Elsewhere
	watch  *routes.Watch
	warned map[string]bool // what has been logged of it
	ended  chan struct{}   // closed when all of it is
}

const (
	// lastTime is how long the next stay waits for the last one to end, and leaveTime who ends it. Usually that is no time; but a look
	// may wait for a helper.
	lastTime  = 15 * time.Second
	leaveTime = 100 * time.Millisecond
)

// end closes it.
func (r *Provisioner) end(st *attachment) {
	if st.watch != nil {
		st.watch.Close()
	}
	if st.there != nil {
		st.there.Close()
	}
	st.maker.Close()
	r.spaces.drop(st.space.Cookie())
	st.space.Close()
	close(st.ended)
}

// over waits until it is closed, and reports whether it is. It may be nil.
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

// siteRoutes implements registry.Routes.
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

// spaces are the namespaces that NICs are attached to, by cookie.
type spaces struct {
	mu sync.Mutex
	of map[uint64]string // guarded by mu; the NIC's name
}

// take gives a namespace to a NIC.
func (s *spaces) take(cookie uint64, name string) error {
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

func (s *spaces) drop(cookie uint64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.of, cookie)
}

// newSite is that of a NIC, if its network has them.
func (r *Provisioner) newNamespacePort(n *tenant.Network) *namespacePort {
	if n.Spec.Way != tenant.WayNamespace {
		return nil
	}
	r.sites++
	return &namespacePort{number: ib.NamespaceNetwork(r.sites), mtu: n.Spec.MTU}
}

// attach gives a NIC the addresses and sockets of the namespace in which conn's peer is.
func (r *Provisioner) attach(s *hostedNIC, conn syscall.Conn) (err error) {
	t := s.namespace
	t.mu.Lock()
	last := t.last
	t.mu.Unlock()
	if !last.over(lastTime) {
		return fmt.Errorf("NIC %s is still leaving the network namespace of the container before: try again", s.nic.Name)
	}
	st, err := r.open(s, conn)
	if err != nil {
		return err
	}
	t.mu.Lock()
	t.now, t.last = st, st
	t.routes.now.Store(st.there)
	t.mu.Unlock()
	defer func() {
		if err != nil {
			r.takeOut(s)
			r.end(st)
		}
	}()
	if _, err := r.look(s, st); err != nil {
		return err
	}
	if err := s.nic.Tree.Rewrite(); err != nil {
		return err
	}
	t.mu.Lock()
	outward := outwardOf(t.rows)
	t.mu.Unlock()
	r.cfg.Log.Info("a NIC has the network of a container", "nic", s.nic.Name, "addresses", outward, "mtu", 128<<s.nic.Device.Face().MTU)
	if len(outward) == 0 {
		r.cfg.Log.Warn("a NIC's container has no network: only the container's own programs reach each other", "nic", s.nic.Name)
	}
	go r.follow(s, st)
	return nil
}

// stayAt opens what is needed in the namespace in which conn's peer is.
func (r *Provisioner) open(s *hostedNIC, conn syscall.Conn) (_ *attachment, err error) {
	space, err := netns.Of(conn)
	if err != nil {
		return nil, err
	}
	if err := r.spaces.take(space.Cookie(), s.nic.Name); err != nil {
		space.Close()
		return nil, err
	}
	st := &attachment{space: space, maker: netns.NewMaker(space), warned: make(map[string]bool), ended: make(chan struct{})}
	if st.there, err = openElsewhere(space); err == nil {
		st.watch, err = openWatch(space) // before the first look, so that nothing is missed
	}
	if err != nil {
		r.end(st)
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

// openElsewhere opens what the namespace's kernel is asked through.
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

// openNetlink opens one socket of netlink's.
func openNetlink(space *netns.Space) (int, error) {
	fds, err := space.Open([]netns.Kind{netns.Netlink})
	if err != nil {
		return -1, err
	}
	return fds[0], nil
}

// detach undoes attach. It may be called again.
func (r *Provisioner) detach(s *hostedNIC) {
	if st := r.takeOut(s); st != nil {
		st.over(leaveTime) // else a look goes on, and it ends after that
	}
}

// takeOut has the NIC have no namespace any more; nil: it had none. Who uses the stay closes it.
func (r *Provisioner) takeOut(s *hostedNIC) *attachment {
	t := s.namespace
	t.mu.Lock()
	defer t.mu.Unlock()
	st := t.now
	if st == nil {
		return nil
	}
	r.onLoop(func() { // fails only after the loop has ended, and all sockets with it
		if t.udp != nil {
			r.cfg.Engine.RemoveNamespace(s.nic.Device, t.number)
		}
		r.cfg.NICs.SetFace(s.nic, nic.Face{MTU: nic.LargestMTU})
	})
	t.routes.now.Store(nil)
	st.watch.Close()
	t.now, t.udp, t.rows, t.owed = nil, nil, nil, false
	if err := s.nic.Tree.Rewrite(); err != nil {
		r.cfg.Log.Warn("the device tree of a NIC has the addresses of a container that is gone", "nic", s.nic.Name, "error", err)
	}
	return st
}
