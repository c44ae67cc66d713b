package rack

import (
	"cmp"
	"errors"
	"fmt"
	"math"
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
	"vrdma/internal/order"
	"vrdma/internal/routes"
	"vrdma/internal/tenant"
)

// In a network with way namespace a NIC is what an interface would be in the container that has it:
// its addresses are those of the container's interfaces, and packets leave through UDP sockets that are in
// the container's network namespace, so that its routes and filters hold for them. Nobody has such
// a NIC's addresses but its kernel: they are read when the first program of a workload opens the NIC.
//
//	nobody has it: no address ── a workload's first program ──▶ attached: addresses, sockets, routes
//	                         ◀── its last program ended ──────
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
	space  *netns.Space // guarded by mu; nil: it is not attached
	maker  *netns.Maker
	opened bool // the engine has it
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
	t.space = space
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
	all, err := there.Addresses()
	if err != nil {
		return fmt.Errorf("the addresses of the container are not known: %w", err)
	}
	use, over := bounded(usable(all))
	if over > 0 {
		r.cfg.Log.Warn("a container has more addresses than a NIC: the last ones are left out", "nic", s.nic.Name, "used", len(use), "left out", over)
	}
	face := nic.Face{MTU: nic.LargestMTU}
	mtu, counts := cmp.Or(t.mtu, math.MaxInt), [2]int{}
	var outward []netip.Addr
	for _, i := range use {
		face.GIDs = append(face.GIDs, nic.GIDEntry{GID: i.Addr.As16(), NetDev: i.Name})
		if !i.Addr.IsLoopback() {
			outward = append(outward, i.Addr)
			mtu = min(mtu, i.MTU)
			counts[family(i.Addr)] += link.SocketsPerAddress
		}
	}
	if mtu != math.MaxInt {
		face.MTU = nic.MTUWithin(mtu)
	}
	if err := r.openSite(s, face, use, outward, counts); err != nil {
		return err
	}
	if len(outward) == 0 {
		r.cfg.Log.Warn("a NIC's container has no network: only the container's own programs reach each other", "nic", s.nic.Name)
	}
	r.cfg.Log.Info("a NIC has the network of a container", "nic", s.nic.Name, "addresses", outward, "mtu", 128<<face.MTU)
	return s.nic.Tree.Rewrite()
}

// family is 0 for IPv4 and 1 for IPv6.
func family(a netip.Addr) int {
	if a.Is4() {
		return 0
	}
	return 1
}

// openSite opens the sockets and has the loop use them.
func (r *Rack) openSite(s *slot, face nic.Face, use []routes.Interface, outward []netip.Addr, counts [2]int) (err error) {
	t := s.site
	var port *link.Port
	var udp *link.UDP
	if len(outward) > 0 {
		if t.maker, err = netns.NewMaker(t.space, counts[0], counts[1]); err != nil {
			return err
		}
		o := r.cfg.Sockets
		o.Socket = t.maker.Socket
		o.Interface = func(a netip.Addr) int {
			if i := slices.IndexFunc(use, func(i routes.Interface) bool { return i.Addr == a }); i >= 0 {
				return use[i].Index
			}
			return 0
		}
		if udp, err = link.ListenUDP(o, outward...); err != nil {
			return err
		}
		port = link.NewPort(udp)
	}
	perr := r.onLoop(func() {
		r.cfg.NICs.SetFace(s.nic, face)
		if port != nil {
			window, flight := r.cfg.Windows(udp)
			err = r.cfg.Engine.AddSite(s.nic.Device, t.number, port, udp.Descriptors(), window, flight)
		}
	})
	if err = errors.Join(perr, err); err != nil {
		if port != nil {
			port.Close()
		}
		return err
	}
	t.opened = port != nil
	return nil
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

// usable are the addresses that become GIDs, in the order in which tools should find them: they take the
// first that fits. Link-local ones mean nothing without the interface.
func usable(all []routes.Interface) []routes.Interface {
	out := slices.DeleteFunc(slices.Clone(all), func(i routes.Interface) bool { return i.Addr.IsLinkLocalUnicast() })
	rank := func(i routes.Interface) int {
		r := family(i.Addr)
		if i.Addr.IsLoopback() {
			r += 2
		}
		return r
	}
	order.SortStableFunc(out, func(a, b routes.Interface) int { return cmp.Compare(rank(a), rank(b)) })
	return slices.CompactFunc(out, func(a, b routes.Interface) bool { return a.Addr == b.Addr })
}

// A NIC has at most so many of a container's addresses: each outward one has sockets, and the container chooses how many
// there are.
const (
	mostOutward  = 16
	mostLoopback = 8
)

// bounded are the first of each kind, and how many more there are.
func bounded(all []routes.Interface) (use []routes.Interface, over int) {
	outward, loopback := 0, 0
	for _, i := range all {
		count, most := &outward, mostOutward
		if i.Addr.IsLoopback() {
			count, most = &loopback, mostLoopback
		}
		if *count++; *count > most {
			over++
			continue
		}
		use = append(use, i)
	}
	return use, over
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
		if t.opened {
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
	r.spaces.drop(t.space.Cookie())
	t.space.Close()
	t.space, t.maker, t.opened = nil, nil, false
	if err := s.nic.Tree.Rewrite(); err != nil {
		r.cfg.Log.Warn("the device tree of a NIC has the addresses of a container that is gone", "nic", s.nic.Name, "error", err)
	}
}
