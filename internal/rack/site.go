package rack

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"vrdma/internal/link"
	"vrdma/internal/netns"
	"vrdma/internal/nic"
	"vrdma/internal/routes"
	"vrdma/internal/tenant"
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
type site struct {
	number uint32
	routes siteRoutes
	mtu    int // that the network says; 0: that of the interfaces

	// What is open while it is attached. The door calls attach and detach one after the other, and the
	// rack once more at the end.
	mu     sync.Mutex
	space  *netns.Space // guarded by mu, as all below; nil: it is not attached
	maker  *netns.Maker // nil: no socket was needed yet
	udp    *link.UDP    // that the engine has; nil: none
	watch  *routes.Watch
	rows   []row           // what is in the GID table
	warned map[string]bool // what has been logged of it
}

// siteRoutes implements vnic.Routes.
type siteRoutes struct {
	now atomic.Pointer[routes.Elsewhere]
}

func (s *siteRoutes) From(from, to netip.Addr) (netip.Addr, error) {
	if e := s.now.Load(); e != nil {
		return e.From(from, to)
	}
	return netip.Addr{}, syscall.ENETUNREACH
}

func (s *siteRoutes) Reach(from, to netip.Addr, timeout time.Duration) error {
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
func (r *Rack) newSite(n *tenant.Network) *site {
	if n.Spec.Way != tenant.WayNamespace {
		return nil
	}
	r.sites++
	return &site{number: nic.FirstSite + r.sites, mtu: n.Spec.MTU}
}

// attach gives a NIC the addresses and sockets of the namespace in which conn's peer is.
func (r *Rack) attach(s *slot, conn syscall.Conn) (err error) {
	t := s.site
	t.mu.Lock()
	defer t.mu.Unlock()
	space, err := netns.Of(conn)
	if err != nil {
		return err
	}
	if err := r.spaces.take(space.Cookie(), s.nic.Name); err != nil {
		space.Close()
		return err
	}
	t.space, t.warned = space, make(map[string]bool)
	defer func() {
		if err != nil {
			r.detachLocked(s)
		}
	}()
	there, err := openElsewhere(space)
	if err != nil {
		return err
	}
	t.routes.now.Store(there)
	if t.watch, err = openWatch(space); err != nil { // before the first look, so that nothing is missed
		return err
	}
	if err := r.readdress(s, there); err != nil {
		return err
	}
	if !slices.ContainsFunc(t.rows, row.outward) {
		r.cfg.Log.Warn("a NIC's container has no network: only the container's own programs reach each other", "nic", s.nic.Name)
	}
	go r.followSite(s, t.watch)
	return s.nic.Tree.Rewrite()
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
	return routes.NewElsewhere(fds[0], fds[1], fds[2]), nil
}

// detach undoes attach. It may be called again.
func (r *Rack) detach(s *slot) {
	s.site.mu.Lock()
	defer s.site.mu.Unlock()
	r.detachLocked(s)
}

func (r *Rack) detachLocked(s *slot) {
	t := s.site
	if t.space == nil {
		return
	}
	r.onLoop(func() { // fails only after the loop has ended, and all sockets with it
		if t.udp != nil {
			r.cfg.Engine.RemoveSite(s.nic.Device, t.number)
		}
		r.cfg.NICs.SetFace(s.nic, nic.Face{MTU: nic.LargestMTU})
	})
	if e := t.routes.now.Swap(nil); e != nil {
		e.Close()
	}
	if t.maker != nil {
		t.maker.Close()
	}
	if t.watch != nil {
		t.watch.Close()
	}
	r.spaces.drop(t.space.Cookie())
	t.space.Close()
	t.space, t.maker, t.udp, t.watch, t.rows = nil, nil, nil, nil, nil
	if err := s.nic.Tree.Rewrite(); err != nil {
		r.cfg.Log.Warn("the device tree of a NIC has the addresses of a container that is gone", "nic", s.nic.Name, "error", err)
	}
}
