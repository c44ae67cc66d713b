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

// An underlay is a roce.Underlay and what the engine knows about the hosts behind it. There are two
// kinds:
//
//	portUnderlay      a roce.Port: the hosts' own network, or that of a network namespace
//	overlayUnderlay   the roce.Overlay: all virtual networks
//
// A route finds its underlay once, when it is resolved.
type underlay interface {
	roce.Underlay
	// features returns the known features of the host that a route leads to. fresh says that a
	// queue pair is about to connect: the underlay asks the host if it has to.
	features(r *route, fresh bool) uint32
	// maxBurst is how many bytes of a message one system call carries, in packets of this MTU.
	maxBurst(mtu uint32, v4 bool) uint32
	// hello takes the datagram of queue pair 1 in management.in, and reports whether it was
	// one by which hosts recognise each other.
	hello(id ib.NetworkID, a *adapter, b *transport.Burst) bool
	// join makes this host a member of a multicast group and returns the descriptor on which its
	// packets arrive; -1: they arrive with all others, or not at all.
	join(group netip.Addr) (int, error)
	leave(group netip.Addr)
	// pollGroup reads a batch from such a descriptor, and reports whether there was one.
	pollGroup(fd int) bool
}

// attached is an underlay that the loop serves.
type attached struct {
	underlay
	wake []int   // descriptors, of which one is readable when packets have arrived
	at   ib.Time // when it was used last
	// descriptors returns what wake has to be, if it is a shard of another loop's port (steering.go).
	descriptors func() []int
}

// underlays are all that the loop serves. The loop does not read a silent one in every pass: its
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

// poll takes packets that have arrived at the underlays that were used lately, or at all.
func (n *network) poll(all bool) (found bool) {
	if n.opts.Deaf {
		return false
	}
	list := n.list
	if len(list) == 1 {
		return list[0].Poll(n)
	}
	for _, a := range list {
		if (all || n.clock.now-a.at <= quietAfter) && a.Poll(n) {
			a.at, found = n.clock.now, true
		}
	}
	return found
}

// attach makes the loop serve an underlay. After an error it is not served.
func (n *network) attach(u underlay, wake []int) (*attached, error) {
	a := &attached{underlay: u, wake: wake, at: n.clock.now}
	for i, fd := range wake {
		if err := n.watch(a, fd); err != nil {
			for _, fd := range wake[:i] {
				delete(n.fds, int32(fd))
			}
			return nil, err
		}
	}
	u.SetTap(n.tap)
	n.list = append(n.list, a)
	return a, nil
}

// watch makes the loop wake when a descriptor of an underlay is readable. epoll forgets closed
// descriptors.
func (n *network) watch(a *attached, fd int) error {
	if n.opts.Deaf {
		n.fds[int32(fd)] = a
		return nil
	}
	if err := n.poller.watchSocket(fd); err != nil {
		return fmt.Errorf("engine: epoll: %w", err)
	}
	n.fds[int32(fd)] = a
	return nil
}

// Listen makes a loop with Options.Deaf read packets. It runs on the loop.
func (e *Engine) Listen() error {
	for _, o := range e.loops.heldLoops() {
		if err := o.net.listen(); err != nil {
			return err
		}
	}
	if e.first.net.host != nil {
		e.loops.steerAgain()
	}
	return nil
}

func (n *network) listen() error {
	n.opts.Deaf = false
	for fd, a := range n.fds {
		if err := n.watch(a, int(fd)); err != nil {
			return err
		}
	}
	n.traffic.wake(n.clock.now)
	return nil
}

// A portUnderlay is a port and the known hosts behind it.
type portUnderlay struct {
	*roce.Port
	net   *network
	peers *peers.Table  // nil: no host is recognised
	main  *portUnderlay // the first loop's, if this is a shard of it
}

// features implements underlay.
func (p *portUnderlay) features(r *route, fresh bool) uint32 {
	others := p.peers
	if p.main != nil {
		others = p.main.peers // the first loop holds this one
	}
	if others == nil || !reachable(r) {
		return 0
	}
	f := meet(others, fresh, p.net.clock.now, r)
	// Filler depends on the address, not on the queue pair: without knowledge of the host there
	// is none. Judged sets it later.
	p.setFeatures(r.to, f)
	return f
}

func (p *portUnderlay) setFeatures(to netip.Addr, f uint32) {
	p.SetFiller(to, f&wire.FeatureFiller != 0)
	p.SetLongFiller(to, f&wire.FeatureLongFiller != 0)
}

// remoteBurst is what fits into one sendmsg with UDP segmentation: 64 datagrams and 65507 bytes,
// headers included.
const remoteBurst = 62 << 10

// maxBurst implements underlay.
func (p *portUnderlay) maxBurst(uint32, bool) uint32 { return remoteBurst }

// hello implements underlay.
func (p *portUnderlay) hello(_ ib.NetworkID, _ *adapter, b *transport.Burst) bool {
	return p.peers != nil && p.peers.Receive(p.net.clock.now, b.SGID, b.DGID, p.net.mgmt.in[:], p.arrival())
}

// arrival says how the burst that is being received has arrived.
func (p *portUnderlay) arrival() peers.Arrival {
	if c := p.net.loop.inward.current; c != nil {
		return c.arrival // at another loop
	}
	return peers.Arrival{LongID: p.LongID(), Strange: p.Strange()}
}

// arrivalAt is arrival for the port of a network.
func (n *network) arrivalAt(id ib.NetworkID) (a peers.Arrival) {
	if u := n.of(id); u != nil {
		if p, ok := u.underlay.(*portUnderlay); ok {
			a = p.arrival()
		}
	}
	return a
}

// join implements underlay.
func (p *portUnderlay) join(group netip.Addr) (int, error) { return p.Join(group) }

// leave implements underlay.
func (p *portUnderlay) leave(group netip.Addr) { p.Leave(group) }

// pollGroup implements underlay.
func (p *portUnderlay) pollGroup(fd int) bool { return p.PollGroup(fd, p.net) }

// An overlayUnderlay is the overlay. The map has the features of most of its hosts.
type overlayUnderlay struct {
	*roce.Overlay
	net *network
}

// features implements underlay.
func (o *overlayUnderlay) features(r *route, fresh bool) uint32 {
	others := o.net.peersOf(r.network, r.to)
	if others == nil || !reachable(r) {
		return o.Features(r.network.VNI(), r.to)
	}
	f := meet(others, fresh, o.net.clock.now, r)
	o.net.virtual.note(others)
	o.SetFeatures(r.network.VNI(), r.to, f)
	return f
}

// maxBurst implements underlay: every packet has a VXLAN header.
func (o *overlayUnderlay) maxBurst(mtu uint32, v4 bool) uint32 {
	head := uint32(overlay.Head6)
	if v4 {
		head = overlay.Head4
	}
	const way = wire.BTHSize + wire.RETHSize + wire.ICRCSize
	return max(min(roce.MaxMessage/(mtu+way+head), roce.MaxSegments), 1) * mtu
}

// hello implements underlay.
func (o *overlayUnderlay) hello(id ib.NetworkID, a *adapter, b *transport.Burst) bool {
	return wire.MAD(o.net.mgmt.in[:]).Class() == wire.ClassHello && o.net.greeted(a, id, b)
}

// join implements underlay: the other hosts of a virtual network send to every host of it.
func (o *overlayUnderlay) join(netip.Addr) (int, error) { return -1, nil }

// leave implements underlay.
func (o *overlayUnderlay) leave(netip.Addr) {}

// pollGroup implements underlay.
func (o *overlayUnderlay) pollGroup(int) bool { return false }

// AddOverlay makes the engine serve virtual networks between hosts. wake are the overlay's
// descriptors: one of them is readable when packets have arrived. window and flight are Options'
// Window and InFlight, unless a port has set them. It runs on the loop, once.
func (e *Engine) AddOverlay(o *roce.Overlay, wake []int, window, flight uint32) error {
	n := &e.first.net
	a, err := n.attach(&overlayUnderlay{o, n}, wake)
	if err != nil {
		return err
	}
	if n.host == nil {
		e.first.opts.Window, e.first.opts.InFlight = window, flight
	}
	o.OnTooLong(n.noteTooLong)
	o.OnQuestion(func(vni uint32, addr netip.Addr) bool {
		return e.first.adapters.at[netAddr{ib.VirtualNetwork(vni), ib.GIDOf(addr)}] != nil
	})
	n.over, n.overlay = a, o
	e.first.adapters.rerouteAll() // there was no way before
	return nil
}

// AddTunnel gives the overlay the tunnel for encrypted networks. It runs on the loop, before the
// map that needs it.
func (e *Engine) AddTunnel(t roce.Tunnel) error {
	if err := e.first.net.watch(e.first.net.over, t.FD()); err != nil {
		return err
	}
	e.first.net.overlay.SetTunnel(t)
	return nil
}

// SetMap sets which member of a virtual network is on which host. The Resolver knows already. It
// runs on the loop.
func (e *Engine) SetMap(m *overlay.Map) {
	n := &e.first.net
	var relocated []overlay.Address
	if o := n.overlay; o != nil {
		old := o.Members()
		o.SetMap(m)
		n.virtual.keep(old, m)
		relocated = m.Relocated(old)
	}
	for _, o := range e.loops.heldLoops() {
		o.adapters.readdressAll()
	}
	n.rejoin()
	e.first.adapters.eachRemote(func(t *task) {
		if t.route.network != ib.HostNetwork {
			t.q.Transport().SetPath(t.path(&t.route, false))
		}
	})
	e.first.followMap(relocated)
}

// Features are those that this host announces to others.
func (e *Engine) Features() uint32 { return e.first.opts.features() }
