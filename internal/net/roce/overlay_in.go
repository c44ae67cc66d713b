package roce

import (
	"bytes"
	"net/netip"

	"vrdma.dev/vrdma/internal/ib"
	"vrdma.dev/vrdma/internal/net/overlay"
	"vrdma.dev/vrdma/internal/net/wire"
)

// incoming is the receiving half of an Overlay.
type incoming struct {
	inbound
	// The sender of the current message, and how the message arrived.
	host    *overlay.Host
	from    netip.Addr
	port    uint16
	sealed  bool
	strange bool // from is a port from which the host does not send
	// A cache of the last accepted header, its content and the length of its datagram. It is empty while length
	// is 0.
	seen   [overlay.Head6]byte
	length int
	size   int // size of the header
	head   overlay.Head
}

// forget clears the cache.
func (n *incoming) forget() {
	n.length, n.host, n.from, n.head = 0, nil, netip.Addr{}, overlay.Head{}
}

// Poll implements Underlay.
func (o *Overlay) Poll(r Receiver) bool {
	n, err := o.bind.Receive(o.in)
	found := n > 0 && err == nil
	for i := range n {
		m := &o.in[i]
		o.arrives(m.Remote)
		o.take(m, r)
		m.Data = m.Data[:receiveRoom]
	}
	if o.tunnel == nil {
		return found
	}
	n, err = o.tunnel.Receive(o.in)
	for i := range n {
		m := &o.in[i]
		if m.Host != o.host || !o.sealedIn() {
			o.speaks(m.Host, netip.Addr{}, true)
		}
		o.take(m, r)
		m.Data, m.Host = m.Data[:receiveRoom], nil
	}
	return found || n > 0 && err == nil
}

func (o *Overlay) sealedIn() bool { return o.incoming.sealed }

// arrives prepares for datagrams from an address and port of the underlay, which are mostly the previous ones.
func (o *Overlay) arrives(from netip.AddrPort) {
	a, port := from.Addr(), from.Port()
	if a != o.from || o.sealedIn() {
		o.speaks(o.members.HostAt(a.WithZone("")), a, false)
	} else if port == o.port {
		return
	}
	o.port, o.strange = port, o.host != nil && !o.host.SourcePorts.Has(port)
}

// speaks prepares for datagrams of a host; nil means an unknown host.
func (o *Overlay) speaks(h *overlay.Host, from netip.Addr, sealed bool) {
	o.forget()
	o.host, o.from, o.incoming.sealed, o.strange = h, from, sealed, false
}

// take checks the datagrams of a message, each of which may be of another network or pair of members, and
// converts their packets to bursts.
func (o *Overlay) take(m *Message, r Receiver) {
	c := &o.plain.count
	c.RcvdCalls++
	c.RcvdBytes += uint64(len(m.Data))
	if m.CE {
		c.RcvdMarked++
	}
	if o.host == nil || o.host.Self || o.strange {
		k := uint64(packetsIn(m))
		c.RcvdPackets += k
		switch {
		case o.host == nil:
			c.Overlay.Strangers += k
		case o.host.Self:
			c.FromSelf += k
		default:
			c.Overlay.WrongPort += k
		}
		return
	}
	o.inbound.take(o, m, r, c)
}

// middles implements opener. All datagrams have the length of a segment.
func (o *Overlay) middles(pkt wire.Packet, data []byte, segment int, _ uint16) (k int) {
	if len(data) < segment || o.length != segment || o.plain.tap != nil || !o.join.goesOn() {
		return 0
	}
	s, ok := o.flow.Series(pkt)
	if !ok {
		return 0
	}
	for ; len(data) >= segment && bytes.Equal(data[:o.size], o.seen[:o.size]); data = data[segment:] {
		payload, ok := s.Check(data[o.size:segment], o.head.ID)
		if !ok {
			break
		}
		o.join.again(payload)
		k++
	}
	return k
}

// open implements opener: it checks sender, destination and ICRC of a packet.
func (o *Overlay) open(m *Message, data []byte, _ uint16) (pkt wire.Packet, ok bool) {
	var inner []byte
	if len(data) == o.length && bytes.Equal(data[:o.size], o.seen[:o.size]) {
		inner = data[o.size:] // same header as before
	} else if inner, ok = o.judge(m, data); !ok {
		return pkt, false
	}
	c := &o.plain.count
	if o.plain.tap != nil {
		o.record(m, data)
	}
	pkt, err := wire.Parse(inner)
	if err != nil {
		c.Malformed++
		return pkt, false
	}
	if o.flow.Sum(pkt, o.head.ID) != pkt.ICRC() {
		c.BadICRC++
		return pkt, false
	}
	return pkt, true
}

// record passes a received datagram to the tap.
func (o *Overlay) record(m *Message, data []byte) {
	local, remote := m.Local, m.Remote
	if o.incoming.sealed && len(o.addrs) > 0 && len(o.host.Addrs) > 0 {
		// The underlay saw only the tunnel's datagram: record it as it would be without the tunnel.
		local, remote = netip.AddrPortFrom(o.addrs[0], overlay.DefaultPort), remoteAt(o.host, o.host.Addrs[0])
	}
	ecn := uint8(ect)
	if m.CE {
		ecn = ce
	}
	o.plain.tap.inside(o.plain.tap.now(), remote, local, data, ecn)
}

// judge decodes the header of a datagram and decides whether to accept it. If so, it caches the header, so that
// the next datagram with an equal header needs no decision, and returns the packet.
func (o *Overlay) judge(m *Message, data []byte) (inner []byte, ok bool) {
	c := &o.plain.count.Overlay
	h, inner, kind := overlay.Parse(data)
	if kind == overlay.Bad {
		c.BadHead++
		return nil, false
	}
	if kind == overlay.RoCE && o.isKnown(&h) {
		if h.Src.Port() != o.head.Src.Port() {
			o.flow.Set(h.Src, h.Dst)
		}
		o.remember(&h, data, inner)
		return inner, true
	}
	switch why := o.refuse(&h, kind); {
	case why == ignored && o.frames != nil:
		o.toSwitch(m, h.VNI, data)
		return nil, false
	case why != admitted:
		c.refused(why)
		return nil, false
	}
	if kind == overlay.Neighbour {
		o.asked(m, h.VNI, inner)
		return nil, false
	}
	if o.frames != nil && o.frames.Wants(h.VNI, h.Dst.Addr()) {
		o.toSwitch(m, h.VNI, data)
		return nil, false
	}
	o.pair++
	o.flow.Set(h.Src, h.Dst)
	o.sgid, o.dgid = ib.GIDOf(h.Src.Addr()), ib.GIDOf(h.Dst.Addr())
	o.remember(&h, data, inner)
	return inner, true
}

// toSwitch passes the frame in a datagram to the switch.
func (o *Overlay) toSwitch(m *Message, vni uint32, data []byte) {
	if o.plain.tap != nil {
		o.record(m, data)
	}
	o.frames.Receive(vni, o.host, data[overlay.VXLANSize:])
}

// isKnown reports whether a packet has the same source and destination as the one before.
func (o *Overlay) isKnown(h *overlay.Head) bool {
	k := &o.head
	return k.VNI != 0 && h.VNI == k.VNI && h.To == k.To && h.From == k.From && h.Src.Addr() == k.Src.Addr() && h.Dst.Addr() == k.Dst.Addr()
}

// remember caches an accepted header.
func (o *Overlay) remember(h *overlay.Head, data, inner []byte) {
	o.head = *h
	o.network = ib.VirtualNetwork(h.VNI)
	o.marked = h.TOS&3 == ce
	o.size = h.Size()
	if o.length = 0; o.size+len(inner) == len(data) { // with padding the header is decoded again
		o.length = len(data)
		copy(o.seen[:], data[:o.size])
	}
}

// A verdict is the reason to reject a datagram.
type verdict uint8

const (
	admitted verdict = iota
	noNetwork
	unsealed
	notMember
	ignored
	spoofed
	notHere
)

// refused counts a rejected datagram.
func (c *OverlayCounters) refused(why verdict) {
	switch why {
	case noNetwork:
		c.NoNetwork++
	case unsealed:
		c.Unsealed++
	case notMember:
		c.NotMember++
	case ignored:
		c.Ignored++
	case spoofed:
		c.Spoofed++
	case notHere:
		c.NotHere++
	}
}

// refuse decides whether to accept a datagram of the current host for a network.
func (o *Overlay) refuse(h *overlay.Head, kind overlay.Kind) verdict {
	net := o.members.Network(h.VNI)
	switch {
	case net == nil:
		return noNetwork
	case net.Encrypted && !o.incoming.sealed:
		return unsealed
	case kind != overlay.RoCE && !o.members.IsMember(h.VNI, o.host):
		return notMember
	case kind == overlay.Other:
		return ignored
	case kind == overlay.Neighbour:
		return admitted // asked handles it
	}
	from := o.members.Find(h.VNI, h.Src.Addr())
	if from == nil || from.Host != o.host {
		if !o.members.IsMember(h.VNI, o.host) {
			return notMember
		}
		return spoofed
	}
	if h.From.IsGroup() || !o.host.Linux && h.From != from.MAC {
		return spoofed
	}
	if dst := h.Dst.Addr(); dst.IsMulticast() {
		if h.To != overlay.GroupMAC(dst) {
			return notHere
		}
	} else if to := o.members.Find(h.VNI, dst); to == nil || !to.Host.Self || h.To != to.MAC {
		return notHere
	}
	if o.host.Linux {
		o.neighbour(h.VNI, from).mac = h.From
	}
	return admitted
}

// asked handles an ARP or neighbour solicitation message. Only the kernel's vxlan sends them.
func (o *Overlay) asked(m *Message, vni uint32, frame []byte) {
	c := &o.plain.count.Overlay
	q, ok := overlay.ParseNeighbour(frame)
	if !ok && o.frames != nil {
		o.frames.Receive(vni, o.host, frame) // other messages of ICMPv6
		return
	}
	if !ok || !o.host.Linux {
		c.Ignored++
		return
	}
	// The sender must be a member on that host. With IPv6 it may use a link-local address, or none yet.
	sender := o.members.Find(vni, q.Sender)
	if sender == nil && !q.Sender.IsUnspecified() && !q.Sender.IsLinkLocalUnicast() || sender != nil && sender.Host != o.host || q.MAC.IsGroup() {
		c.Spoofed++
		return
	}
	if sender != nil {
		o.neighbour(vni, sender).mac = q.MAC
	}
	if !q.Asks {
		return
	}
	to := o.members.Find(vni, q.Target)
	if to == nil || !to.Host.Self || o.here != nil && !o.here(vni, q.Target) {
		c.Unanswered++
		return
	}
	c.Questions++
	o.say(o.host, m.Remote.Addr(), func(b []byte) int { return overlay.PutAnswer(b, vni, &q, to.MAC) })
}

// say sends a datagram that is not a packet to a host, on the path by which its datagrams arrive: to its source
// address, or through the tunnel.
func (o *Overlay) say(h *overlay.Host, at netip.Addr, put func(b []byte) int) {
	out, source, local := &o.plain, 0, netip.AddrPort{}
	if o.incoming.sealed {
		out = &o.sealed
	} else {
		var ok bool
		if source, local, ok = o.sourceFor(at, 0); !ok {
			o.plain.count.NoSource++
			return
		}
	}
	if !out.makeRoom() {
		out.count.SendFull++
		return
	}
	n := put(out.room[out.used:])
	out.push(Message{Segment: n, Source: source, Local: local, Remote: remoteAt(h, at), Host: h, Inside: true}, n)
}

// tellMoves announces NICs that are new on this host to Linux members: their kernel may have an old entry.
func (o *Overlay) tellMoves(old *overlay.Map) {
	for _, net := range o.members.Networks() {
		for _, h := range o.members.Hosts(net.VNI) {
			if h.Linux && len(h.Addrs) > 0 {
				o.tellMovesTo(h, net, old)
			}
		}
	}
}

func (o *Overlay) tellMovesTo(h *overlay.Host, net *overlay.Network, old *overlay.Map) {
	for i := range net.Members {
		e := &net.Members[i]
		if was := old.Find(net.VNI, e.Addr); !e.Host.Self || was != nil && was.Host.Self {
			continue
		}
		o.incoming.sealed = net.Encrypted && o.tunnel != nil
		o.plain.count.Overlay.News++
		o.say(h, h.Addrs[0], func(b []byte) int { return overlay.PutNews(b, net.VNI, e.Addr, e.MAC) })
	}
	o.forget()
	o.incoming.sealed = false
}
