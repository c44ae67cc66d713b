package roce

import (
	"net/netip"

	"vrdma.dev/vrdma/internal/device/transport"
	"vrdma.dev/vrdma/internal/ib"
	"vrdma.dev/vrdma/internal/net/overlay"
	"vrdma.dev/vrdma/internal/net/wire"
)

// An Overlay carries the bursts of virtual networks to and from other hosts in VXLAN. It belongs to one loop.
//
//	Send(vni, from, to, burst) ──▶ lane ──▶ Cutter ──▶ head + packet ──▶ outbox ─┬─▶ Bind
//	                                                                            └─▶ Tunnel
//	       Receiver ◀── Joiner ◀── ICRC ◀── is the sender allowed? (overlay_in.go) ◀── Poll
//
// The Map has the locations of members. A lane caches one path through a network: the header template of its
// packets, and their destination. Headers are written in place before the packets, so the overlay adds no copy.
// Datagrams of equal length are sent and received in one call, as on a Port.
type Overlay struct {
	plain   outbox
	sealed  outbox // for encrypted networks; without a buffer if there is no tunnel
	bind    Bind
	tunnel  Tunnel // nil: none
	addrs   []netip.Addr
	members *overlay.Map
	tooLong func(from, to netip.Addr, size int)
	here    func(vni uint32, a netip.Addr) bool
	frames  Frames // nil: there is no switch

	cut        Cutter
	lanes      map[laneKey]*lane
	last       laneKey
	lane       *lane // the lane of last
	neighbours map[neighbourKey]*neighbour
	learnt     map[neighbourKey]uint32 // features of Linux members, see SetFeatures

	incoming
}

// OverlayConfig are the parts of an overlay.
type OverlayConfig struct {
	// Bind is bound to the VXLAN port of these addresses of the underlay.
	Bind  Bind
	Addrs []netip.Addr
	// Tunnel carries the traffic of encrypted networks; if it is nil, that traffic is dropped.
	Tunnel Tunnel
}

// maxLanes is the maximum number of cached lanes.
const maxLanes = 1 << 16

// A laneKey identifies a path through a network.
type laneKey struct {
	vni      uint32
	port     uint8 // index of the source port
	from, to netip.Addr
	host     *overlay.Host // for multicast, the host that gets this copy
}

// A lane is the cached state of a path through a network.
type lane struct {
	out           *outbox
	segments      func() int
	source        int            // result of Bind.Source
	local, remote netip.AddrPort // outer addresses
	host          *overlay.Host
	src, dst      netip.AddrPort // inner addresses
	filler, long  bool
	head          overlay.Template
	// A Linux member may announce another MAC than the one in head.
	neighbour *neighbour
	mac       overlay.MAC // the MAC in head
	make      overlay.Head
}

type neighbourKey struct {
	vni  uint32
	addr netip.Addr
}

// A neighbour is what a Linux member announced about itself.
type neighbour struct {
	host     string
	declared overlay.MAC
	mac      overlay.MAC
}

// NewOverlay returns an overlay without networks. Close closes the bind and the tunnel.
func NewOverlay(c OverlayConfig) *Overlay {
	o := &Overlay{
		plain: newOutbox(c.Bind), bind: c.Bind, tunnel: c.Tunnel, addrs: c.Addrs,
		lanes: make(map[laneKey]*lane), neighbours: make(map[neighbourKey]*neighbour),
		learnt: make(map[neighbourKey]uint32),
	}
	o.plain.lost = o.lost
	o.in = receiveSlots()
	if c.Tunnel != nil {
		o.sealed = newOutbox(c.Tunnel)
		o.sealed.lost = o.lost
	}
	return o
}

// SetTunnel sets the tunnel for encrypted networks; Close closes it. The tunnel gets the next map.
func (o *Overlay) SetTunnel(t Tunnel) {
	tap := o.sealed.tap
	o.tunnel, o.sealed = t, newOutbox(t)
	o.sealed.lost, o.sealed.tap = o.lost, tap
	clear(o.lanes)
	o.lane = nil
}

// OnTooLong sets the function that is called when the kernel refuses a datagram because it is too long for the
// underlay. size includes all headers from the outer IP header on.
func (o *Overlay) OnTooLong(f func(from, to netip.Addr, size int)) { o.tooLong = f }

func (o *Overlay) lost(m *Message, err error) { tellTooLong(o.tooLong, m, err) }

// OnQuestion sets the function that reports whether an address of a network is on this host, for ARP and neighbour requests.
func (o *Overlay) OnQuestion(here func(vni uint32, a netip.Addr) bool) { o.here = here }

// SetTap implements Underlay.
func (o *Overlay) SetTap(t *Tap) { o.plain.tap, o.sealed.tap = t, t }

// Counters implements Underlay.
func (o *Overlay) Counters() Counters {
	c := o.plain.count
	s := &o.sealed.count
	c.SentPackets += s.SentPackets
	c.SentBytes += s.SentBytes
	c.SentCalls += s.SentCalls
	c.SendFull += s.SendFull
	c.SendErrors += s.SendErrors
	if o.tunnel != nil {
		c.Overlay.Tunnel = o.tunnel.Dropped()
	}
	return c
}

// Moved implements Underlay.
func (o *Overlay) Moved() uint64 { return o.plain.Moved() + o.sealed.Moved() }

// Pending implements Underlay.
func (o *Overlay) Pending() bool { return o.plain.Pending() || o.sealed.Pending() }

// Ready implements Underlay.
func (o *Overlay) Ready() bool { return o.plain.Ready() && o.sealed.Ready() }

// Flush implements Underlay.
func (o *Overlay) Flush() {
	if o.plain.Pending() {
		o.plain.Flush()
	}
	if o.sealed.Pending() {
		o.sealed.Flush()
	}
}

// Close closes bind and tunnel.
func (o *Overlay) Close() error {
	err := o.bind.Close()
	if o.tunnel != nil {
		if terr := o.tunnel.Close(); err == nil {
			err = terr
		}
	}
	return err
}

// Members returns the current map; nil before the first.
func (o *Overlay) Members() *overlay.Map { return o.members }

// SetMap sets the map of members and hosts.
func (o *Overlay) SetMap(m *overlay.Map) {
	old := o.members
	o.members = m
	clear(o.lanes)
	clear(o.learnt)
	o.lane = nil
	o.forget()
	for k, n := range o.neighbours {
		if e := m.Find(k.vni, k.addr); e == nil || e.Host.Name != n.host || e.MAC != n.declared {
			delete(o.neighbours, k)
		}
	}
	if o.tunnel != nil {
		o.tunnel.SetMap(m)
	}
	o.tellMoves(old)
}

// Features returns the features of the host that has an address of a network.
func (o *Overlay) Features(vni uint32, to netip.Addr) uint32 {
	if e := o.members.Find(vni, to); e != nil && !e.Host.Linux {
		return e.Host.Features
	}
	return 0
}

// IsLinux reports whether an address of a network is on a host that the operator declared as Linux. The map does
// not contain the features of such a host.
func (o *Overlay) IsLinux(vni uint32, to netip.Addr) bool {
	e := o.members.Find(vni, to)
	return e != nil && e.Host.Linux
}

// SetFeatures sets the features of a member whose features the map does not contain, until the next map.
func (o *Overlay) SetFeatures(vni uint32, to netip.Addr, features uint32) {
	k := neighbourKey{vni, to}
	if o.learnt[k] == features {
		return
	}
	if o.learnt[k] = features; features == 0 {
		delete(o.learnt, k)
	}
	clear(o.lanes)
	o.lane = nil
}

// Send implements Underlay.
func (o *Overlay) Send(n ib.NetworkID, from, to netip.Addr, b *transport.Burst) error {
	l := o.laneFor(laneKey{vni: n.VNI(), port: uint8(spread(b.Src) % poolSize), from: from, to: to})
	if l == nil {
		o.plain.count.NoSource++
		return nil
	}
	return o.sendOn(l, b)
}

// SendGroup implements Underlay: every other host of the network gets a copy.
func (o *Overlay) SendGroup(id ib.NetworkID, from, group netip.Addr, b *transport.Burst) (n int) {
	vni := id.VNI()
	for _, h := range o.members.Hosts(vni) {
		l := o.laneFor(laneKey{vni: vni, port: uint8(spread(b.Src) % poolSize), from: from, to: group, host: h})
		if l == nil {
			o.plain.count.NoSource++
			continue
		}
		if o.sendOn(l, b) == nil {
			n++
		}
	}
	return n
}

// sendOn is Send on a lane.
func (o *Overlay) sendOn(l *lane, b *transport.Burst) error {
	o.cut.filler, o.cut.long, o.cut.head = l.filler && l.segments() > 1, l.long, &l.head
	if err := o.cut.Start(b, l.src, l.dst); err != nil {
		return err
	}
	return l.out.put(&o.cut, b, l.message(0), l.segments)
}

// SendCNP implements Underlay.
func (o *Overlay) SendCNP(n ib.NetworkID, from, to netip.Addr, self, qp uint32) {
	l := o.laneFor(laneKey{vni: n.VNI(), port: uint8(spread(self) % poolSize), from: from, to: to})
	if l == nil {
		o.plain.count.NoSource++
		return
	}
	out := l.out
	if !out.makeRoom() {
		out.count.SendFull++
		return
	}
	room, size := out.room[out.used:], l.head.Size()
	c := wire.MakeCNP(room[size:], qp)
	o.cut.Seal(c, l.src, l.dst)
	l.head.Put(room, len(c.Bytes()))
	o.plain.count.SentCNP++
	length := size + len(c.Bytes())
	out.push(l.message(length), length)
}

// message returns a message for the lane.
func (l *lane) message(segment int) Message {
	return Message{Segment: segment, Source: l.source, Local: l.local, Remote: l.remote, Host: l.host, Inside: true}
}

// laneFor returns the lane for a path; nil if the destination is not a member on another host, or if no address
// of the underlay leads there.
func (o *Overlay) laneFor(k laneKey) *lane {
	l := o.lane
	if l == nil || o.last != k {
		if l = o.lanes[k]; l == nil {
			if l = o.newLane(k); l == nil {
				return nil
			}
		}
		o.last, o.lane = k, l
	}
	if l.neighbour != nil && l.neighbour.mac != l.mac {
		l.mac = l.neighbour.mac
		l.make.To = l.mac
		l.head.Set(l.make)
	}
	return l
}

// newLane creates a lane.
func (o *Overlay) newLane(k laneKey) *lane {
	self, net := o.members.Find(k.vni, k.from), o.members.Network(k.vni)
	if self == nil || k.from.Is4() != k.to.Is4() {
		return nil
	}
	l := &lane{host: k.host}
	if l.host == nil {
		e := o.members.Find(k.vni, k.to)
		if e == nil {
			return nil
		}
		l.host, l.mac = e.Host, e.MAC
		if e.Host.Linux {
			l.neighbour = o.neighbour(k.vni, e)
			l.mac = l.neighbour.mac
		}
	} else {
		l.mac = overlay.GroupMAC(k.to)
	}
	if l.host.Self {
		return nil
	}
	var ok bool
	if l.source, l.local, l.remote, ok = o.wayTo(l.host, uint32(k.port)); !ok {
		return nil
	}
	f := l.host.Features
	if l.host.Linux {
		f = o.learnt[neighbourKey{k.vni, k.to}]
	}
	l.filler = f&wire.FeatureFiller != 0
	l.long = l.filler && f&wire.FeatureLongFiller != 0
	l.out, l.segments = &o.plain, o.bind.Segments
	if net.Encrypted {
		if o.tunnel == nil {
			return nil
		}
		l.out, l.segments = &o.sealed, func() int { return MaxSegments }
	}
	l.src, l.dst = netip.AddrPortFrom(k.from, firstPort+uint16(k.port)<<11), netip.AddrPortFrom(k.to, wire.Port)
	l.make = overlay.Head{
		VNI: k.vni, To: l.mac, From: self.MAC, Src: l.src, Dst: l.dst, TOS: overlay.ECT0, TTL: wire.DefaultTTL, Fragment: wire.DontFragment,
	}
	l.head.Set(l.make)
	if len(o.lanes) >= maxLanes {
		clear(o.lanes)
	}
	o.lanes[k] = l
	return l
}

// sourceFor returns the sender for datagrams to a host.
func (o *Overlay) sourceFor(to netip.Addr, hash uint32) (int, netip.AddrPort, bool) {
	for _, a := range o.addrs {
		if a.Is4() == to.Is4() {
			if source, local, ok := o.bind.Source(a.WithZone(""), hash); ok {
				return source, local, true
			}
		}
	}
	return 0, netip.AddrPort{}, false
}

// remoteAt returns the address and port at which a host receives VXLAN.
func remoteAt(h *overlay.Host, at netip.Addr) netip.AddrPort {
	if h.Port == 0 {
		return netip.AddrPortFrom(at, overlay.DefaultPort)
	}
	return netip.AddrPortFrom(at, h.Port)
}

// neighbour returns the record of a Linux member.
func (o *Overlay) neighbour(vni uint32, e *overlay.Member) *neighbour {
	k := neighbourKey{vni, e.Addr}
	n := o.neighbours[k]
	if n == nil {
		n = &neighbour{host: e.Host.Name, declared: e.MAC, mac: e.MAC}
		o.neighbours[k] = n
	}
	return n
}
