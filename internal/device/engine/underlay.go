package engine

import (
	"fmt"
	"net/netip"

	"vrdma.dev/vrdma/internal/device/transport"
	"vrdma.dev/vrdma/internal/ib"
	"vrdma.dev/vrdma/internal/net/overlay"
	"vrdma.dev/vrdma/internal/net/peers"
	"vrdma.dev/vrdma/internal/net/roce"
	"vrdma.dev/vrdma/internal/net/wire"
)

// An underlay is a roce.Underlay and what the engine knows of the hosts that it leads to. There
// are two kinds:
//
//	portUnderlay      a roce.Port: the hosts' own network, or that of a network namespace
//	overlayUnderlay   the roce.Overlay: all virtual networks
//
// A route finds its underlay once, when it is resolved.
type underlay interface {
	roce.Underlay
	// features are those of the host that a route leads to, as far as they are known. fresh
	// says that a queue pair is about to connect: the host is asked if need be.
	features(r *route, fresh bool) uint32
	// maxBurst is how many bytes of a message one call to the kernel carries, in packets of
	// this MTU.
	maxBurst(mtu uint32, v4 bool) uint32
	// hello takes the datagram of queue pair 1 in management.in, and reports whether it was
	// one by which hosts recognise each other.
	hello(n ib.NetworkID, c *card, b *transport.Burst) bool
	// join makes this host a member of a multicast group and returns the descriptor that
	// packets for it arrive at; -1: they arrive with all others, or not at all.
	join(group netip.Addr) (int, error)
	leave(group netip.Addr)
	// pollGroup takes what has arrived at such a descriptor.
	pollGroup(fd int) bool
}

// attached is an underlay that the loop serves.
type attached struct {
	underlay
	wake []int   // descriptors, of which one is readable when something has arrived
	at   ib.Time // when it was used last
}

// underlays are all that the loop serves. One that is silent is not read in every pass: its
// descriptors wake the loop.
type underlays struct {
	list       []*attached
	host       *attached // nil: there is no way to the hosts' own network
	over       *attached // nil: no virtual network is between hosts
	overlay    *roce.Overlay
	namespaces map[ib.NetworkID]*attached
	fds        map[int32]*attached // by descriptor
	gone       roce.Counters       // of those that are closed
}

// of is the underlay of a network; nil: there is none.
func (u *underlays) of(n ib.NetworkID) *attached {
	switch {
	case n == ib.HostNetwork:
		return u.host
	case n.IsVirtual():
		return u.over
	}
	return u.namespaces[n]
}

// any reports whether there is a way to other hosts.
func (u *underlays) any() bool { return len(u.list) > 0 }

// pending reports whether packets wait for a flush.
func (u *underlays) pending() bool {
	for _, a := range u.list {
		if a.Pending() {
			return true
		}
	}
	return false
}

// flush sends what waits, as far as the sockets take it.
func (u *underlays) flush(now ib.Time) {
	for _, a := range u.list {
		if a.Pending() {
			a.Flush()
			a.at = now
		}
	}
}

// moved is how many bytes have been sent and received.
func (u *underlays) moved() uint64 {
	n := u.gone.SentBytes + u.gone.RcvdBytes
	for _, a := range u.list {
		n += a.Moved()
	}
	return n
}

// counters are the sum of all.
func (u *underlays) counters() roce.Counters {
	c := u.gone
	for _, a := range u.list {
		c = c.Add(a.Counters())
	}
	return c
}

// woken notes that a descriptor is readable, and reports whether it belongs to an underlay.
func (u *underlays) woken(fd int32, now ib.Time) bool {
	a := u.fds[fd]
	if a == nil {
		return false
	}
	a.at = now
	return true
}

// poll takes what has arrived at the underlays that have been used lately, or at all.
func (e *Engine) poll(all bool) (found bool) {
	list := e.net.list
	if len(list) == 1 {
		return list[0].Poll(e)
	}
	for _, a := range list {
		if (all || e.now-a.at <= quietAfter) && a.Poll(e) {
			a.at, found = e.now, true
		}
	}
	return found
}

// attach makes the loop serve an underlay. After an error it is not served.
func (e *Engine) attach(u underlay, wake []int) (*attached, error) {
	a := &attached{underlay: u, wake: wake, at: e.now}
	for i, fd := range wake {
		if err := e.watch(a, fd); err != nil {
			for _, fd := range wake[:i] {
				delete(e.net.fds, int32(fd))
			}
			return nil, err
		}
	}
	u.SetTap(e.net.tap)
	e.net.list = append(e.net.list, a)
	return a, nil
}

// watch makes the loop wake when a descriptor of an underlay is readable. The poller forgets
// the descriptor when it is closed.
func (e *Engine) watch(a *attached, fd int) error {
	if err := e.poller.watchSocket(fd); err != nil {
		return fmt.Errorf("engine: epoll: %w", err)
	}
	e.net.fds[int32(fd)] = a
	return nil
}

// A portUnderlay is a port and the hosts that are known at the addresses that it leads to.
type portUnderlay struct {
	*roce.Port
	e     *Engine
	peers *peers.Table // nil: every other host is foreign
}

// features implements underlay.
func (p *portUnderlay) features(r *route, fresh bool) uint32 {
	if p.peers == nil || !reachable(r) {
		return 0
	}
	f := meet(p.peers, fresh, p.e.now, r)
	// Filler is for an address, not for a queue pair: while it is not certain which host is
	// there, nobody sends it. Judged tells.
	p.setFeatures(r.to, f)
	return f
}

func (p *portUnderlay) setFeatures(to netip.Addr, f uint32) {
	p.SetFiller(to, f&wire.FeatureFiller != 0)
	p.SetLongFiller(to, f&wire.FeatureLongFiller != 0)
}

// remoteBurst is what fits one message of the kernel's: 64 datagrams and 65507 bytes,
// headers included.
const remoteBurst = 62 << 10

// maxBurst implements underlay.
func (p *portUnderlay) maxBurst(uint32, bool) uint32 { return remoteBurst }

// hello implements underlay.
func (p *portUnderlay) hello(_ ib.NetworkID, _ *card, b *transport.Burst) bool {
	return p.peers != nil && p.peers.Receive(p.e.now, b.SGID, b.DGID, p.e.mgmt.in[:], p.LongID())
}

// join implements underlay.
func (p *portUnderlay) join(group netip.Addr) (int, error) { return p.Join(group) }

// leave implements underlay.
func (p *portUnderlay) leave(group netip.Addr) { p.Leave(group) }

// pollGroup implements underlay.
func (p *portUnderlay) pollGroup(fd int) bool { return p.PollGroup(fd, p.e) }

// An overlayUnderlay is the overlay. Most of its hosts are on the map, which says what they
// understand.
type overlayUnderlay struct {
	*roce.Overlay
	e *Engine
}

// features implements underlay.
func (o *overlayUnderlay) features(r *route, fresh bool) uint32 {
	e := o.e
	others := e.acquainted(r.network, r.to)
	if others == nil || !reachable(r) {
		return o.Features(r.network.VNI(), r.to)
	}
	f := meet(others, fresh, e.now, r)
	e.net.met.note(others)
	o.SetFeatures(r.network.VNI(), r.to, f)
	return f
}

// maxBurst implements underlay: every packet has a head before it.
func (o *overlayUnderlay) maxBurst(mtu uint32, v4 bool) uint32 {
	head := uint32(overlay.Head6)
	if v4 {
		head = overlay.Head4
	}
	const way = wire.BTHSize + wire.RETHSize + wire.ICRCSize
	return max(min(roce.MaxMessage/(mtu+way+head), roce.MaxSegments), 1) * mtu
}

// hello implements underlay.
func (o *overlayUnderlay) hello(n ib.NetworkID, c *card, b *transport.Burst) bool {
	return wire.MAD(o.e.mgmt.in[:]).Class() == wire.ClassHello && o.e.greeted(c, n, b)
}

// join implements underlay: the other hosts of a virtual network send to every host of it.
func (o *overlayUnderlay) join(netip.Addr) (int, error) { return -1, nil }

// leave implements underlay.
func (o *overlayUnderlay) leave(netip.Addr) {}

// pollGroup implements underlay.
func (o *overlayUnderlay) pollGroup(int) bool { return false }

// AddOverlay makes the engine serve virtual networks that are between hosts; wake are the
// overlay's descriptors, of which one is readable when something has arrived. window and flight
// are Options' Window and InFlight, where there is no port that has them already. It runs on the
// loop, once.
func (e *Engine) AddOverlay(o *roce.Overlay, wake []int, window, flight uint32) error {
	a, err := e.attach(&overlayUnderlay{o, e}, wake)
	if err != nil {
		return err
	}
	if e.net.host == nil {
		e.opts.Window, e.opts.InFlight = window, flight
	}
	o.OnTooLong(e.noteTooLong)
	o.OnQuestion(func(vni uint32, a netip.Addr) bool {
		return e.cards.at[place{ib.VirtualNetwork(vni), ib.GIDOf(a)}] != nil
	})
	e.net.over, e.net.overlay = a, o
	e.rerouteAll()
	return nil
}

// AddTunnel gives the overlay the tunnel that encrypted networks need. It runs on the loop, before
// the map that needs it.
func (e *Engine) AddTunnel(t roce.Tunnel) error {
	if err := e.watch(e.net.over, t.FD()); err != nil {
		return err
	}
	e.net.overlay.SetTunnel(t)
	return nil
}

// SetMap says which member of a virtual network is on which host, after the Resolver knows. It runs
// on the loop.
func (e *Engine) SetMap(m *overlay.Map) {
	if o := e.net.overlay; o != nil {
		old := o.Members()
		o.SetMap(m)
		e.net.met.keep(old, m)
	}
	e.readdress()
	e.rejoin()
	e.eachRemote(func(t *task) {
		if t.route.network != ib.HostNetwork {
			t.q.Transport().SetPath(e.path(t, &t.route, false))
		}
	})
}

// rerouteAll resolves every route again before it is used next: there is an underlay that was
// not there before.
func (e *Engine) rerouteAll() {
	for n := range e.cards.of {
		n.Reroute()
	}
}

// Features are those that this host has, for others to know.
func (e *Engine) Features() uint32 {
	f := uint32(features)
	if e.opts.NoFiller {
		f &^= wire.FeatureFiller | wire.FeatureLongFiller
	}
	return f
}
