package link

import (
	"bytes"
	"net/netip"

	"vrdma/internal/ib"
	"vrdma/internal/overlay"
	"vrdma/internal/transport"
	"vrdma/internal/wire"
)

// A NetworkReceiver takes what arrives in virtual networks.
type NetworkReceiver interface {
	// ReceiveIn is Receiver.Receive for a network. It has been checked that the sending host
	// has SGID and that DGID is here, or a group.
	ReceiveIn(vni uint32, b *transport.Burst, ce bool)
	// CongestedIn is Receiver.Congested.
	CongestedIn(vni uint32, qp uint32, from, to ib.GID)
}

// Frames is who takes what arrives in virtual networks and is not for the NICs of programs: the switch.
type Frames interface {
	// Wants reports whether RoCEv2 packets for an address of a network are for somebody behind the switch.
	Wants(vni uint32, to netip.Addr) bool
	// Receive takes an Ethernet frame, which it copies, of a host that has members of the network. It does
	// not block.
	Receive(vni uint32, from *overlay.Host, frame []byte)
}

// incoming is the receiving half of an Overlay.
type incoming struct {
	in   []Message
	join Joiner
	flow wire.Flow
	// Whom the message is from that is being taken, and how it came.
	host   *overlay.Host
	from   netip.Addr
	sealed bool
	// The head that was found good last, what it says, and of what length its datagram was;
	// nothing is seen while length is 0.
	seen   [overlay.Head6]byte
	length int
	size   int // of the head
	head   overlay.Head
	sgid   ib.GID
	dgid   ib.GID
	marked bool   // with Congestion Experienced
	pair   uint64 // changes with the members between whom packets travel
}

// forget has everything looked up again.
func (n *incoming) forget() { n.length, n.host, n.from, n.head = 0, nil, netip.Addr{}, overlay.Head{} }

// Poll receives what has arrived, one batch at most of each kind, and hands it to r. It reports
// whether there was anything.
func (o *Overlay) Poll(r NetworkReceiver) bool {
	n, err := o.bind.Receive(o.in)
	found := n > 0 && err == nil
	for i := range n {
		m := &o.in[i]
		if a := m.Remote.Addr(); a != o.from || o.sealedIn() {
			o.speaks(o.members.HostAt(a.WithZone("")), a, false)
		}
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

// speaks prepares for datagrams of a host; nil: of a stranger.
func (o *Overlay) speaks(h *overlay.Host, from netip.Addr, sealed bool) {
	o.forget()
	o.host, o.from, o.incoming.sealed = h, from, sealed
}

// take checks the datagrams of a message, each of which may be of another network or pair of
// members, and makes bursts of their packets.
func (o *Overlay) take(m *Message, r NetworkReceiver) {
	c := &o.plain.count
	c.RcvdCalls++
	c.RcvdBytes += uint64(len(m.Data))
	if m.CE {
		c.RcvdMarked++
	}
	if k := uint64(packetsIn(m)); o.host == nil || o.host.Self {
		c.RcvdPackets += k
		if o.host == nil {
			c.Overlay.Strangers += k
		} else {
			c.FromSelf += k
		}
		return
	}
	segment := m.Segment
	if segment <= 0 || segment > len(m.Data) {
		segment = len(m.Data)
	}
	open, ce := false, false // a burst is being joined; it was marked
	var from uint64          // between which members
	var vni uint32
	for at := 0; at < len(m.Data); at += segment {
		c.RcvdPackets++
		pkt, ok := o.unwrap(m, m.Data[at:min(len(m.Data), at+segment)])
		if !ok {
			continue
		}
		if open && from == o.pair && o.join.Extend(pkt) {
			ce = ce || o.marked
			at += segment * o.middles(pkt, m.Data[min(len(m.Data), at+segment):], segment)
			continue
		}
		if open {
			o.deliver(r, vni, ce)
		}
		ce, from, vni = m.CE || o.marked, o.pair, o.head.VNI
		if open = o.join.Begin(pkt, o.sgid, o.dgid); !open {
			c.RcvdCNP++ // the only opcode that is no message's
			r.CongestedIn(vni, pkt.BTH().DestQP(), o.sgid, o.dgid)
		}
	}
	if open {
		o.deliver(r, vni, ce)
	}
}

// middles joins the packets of datagrams that follow that of pkt, the last that was joined, and
// differ from it in nothing but PSN and payload, and returns how many there are at the beginning of
// data. All datagrams are as long as a segment.
func (o *Overlay) middles(pkt wire.Packet, data []byte, segment int) (k int) {
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
	o.plain.count.RcvdPackets += uint64(k)
	return k
}

func (o *Overlay) deliver(r NetworkReceiver, vni uint32, ce bool) {
	o.plain.count.RcvdBursts++
	r.ReceiveIn(vni, o.join.Burst(), ce)
}

// unwrap finds the packet in a datagram, checks who sends it to whom, and its ICRC.
func (o *Overlay) unwrap(m *Message, data []byte) (pkt wire.Packet, ok bool) {
	var inner []byte
	if len(data) == o.length && bytes.Equal(data[:o.size], o.seen[:o.size]) {
		inner = data[o.size:] // as the one before
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

// record shows the tap a datagram that has arrived.
func (o *Overlay) record(m *Message, data []byte) {
	local, remote := m.Local, m.Remote
	if o.incoming.sealed && len(o.addrs) > 0 && len(o.host.Addrs) > 0 {
		// What the underlay has seen is in the tunnel: this is what it would be without.
		local, remote = netip.AddrPortFrom(o.addrs[0], overlay.DefaultPort), remoteAt(o.host, o.host.Addrs[0])
	}
	ecn := uint8(ect)
	if m.CE {
		ecn = ce
	}
	o.plain.tap.inside(o.plain.tap.now(), remote, local, data, ecn)
}

// judge reads the head of a datagram and decides whether it may come in. If so, it remembers the
// head, so that the next one like it needs no decision, and returns the packet.
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
	if why := o.refuse(&h, kind); why != nil {
		if why == &c.Ignored && o.frames != nil {
			o.frames.Receive(h.VNI, o.host, data[overlay.VXLANSize:])
			return nil, false
		}
		*why++
		return nil, false
	}
	if kind == overlay.Neighbour {
		o.asked(m, h.VNI, inner)
		return nil, false
	}
	if o.frames != nil && o.frames.Wants(h.VNI, h.Dst.Addr()) {
		o.frames.Receive(h.VNI, o.host, data[overlay.VXLANSize:])
		return nil, false
	}
	o.pair++
	o.flow.Set(h.Src, h.Dst)
	o.sgid, o.dgid = ib.GIDOf(h.Src.Addr()), ib.GIDOf(h.Dst.Addr())
	o.remember(&h, data, inner)
	return inner, true
}

// isKnown reports whether a packet travels between the same members as the one before.
func (o *Overlay) isKnown(h *overlay.Head) bool {
	k := &o.head
	return k.VNI != 0 && h.VNI == k.VNI && h.To == k.To && h.From == k.From && h.Src.Addr() == k.Src.Addr() && h.Dst.Addr() == k.Dst.Addr()
}

// remember keeps a head that was found good.
func (o *Overlay) remember(h *overlay.Head, data, inner []byte) {
	o.head = *h
	o.marked = h.TOS&3 == ce
	o.size = h.Size()
	if o.length = 0; o.size+len(inner) == len(data) { // else there is padding, and it is looked at again
		o.length = len(data)
		copy(o.seen[:], data[:o.size])
	}
}

// refuse decides whether a datagram of the host that speaks may come into a network, and says which
// counter it belongs to if not.
func (o *Overlay) refuse(h *overlay.Head, kind overlay.Kind) *uint64 {
	c := &o.plain.count.Overlay
	net := o.members.Network(h.VNI)
	switch {
	case net == nil:
		return &c.NoNetwork
	case net.Encrypted && !o.incoming.sealed:
		return &c.Unsealed
	case kind != overlay.RoCE && !o.members.IsMember(h.VNI, o.host):
		return &c.NotMember
	case kind == overlay.Other:
		return &c.Ignored
	case kind == overlay.Neighbour:
		return nil // see asked
	}
	from := o.members.Find(h.VNI, h.Src.Addr())
	if from == nil || from.Host != o.host {
		if !o.members.IsMember(h.VNI, o.host) {
			return &c.NotMember
		}
		return &c.Spoofed
	}
	if h.From.IsGroup() || !o.host.Linux && h.From != from.MAC {
		return &c.Spoofed
	}
	if dst := h.Dst.Addr(); dst.IsMulticast() {
		if h.To != overlay.GroupMAC(dst) {
			return &c.NotHere
		}
	} else if to := o.members.Find(h.VNI, dst); to == nil || !to.Host.Self || h.To != to.MAC {
		return &c.NotHere
	}
	if o.host.Linux {
		o.neighbour(h.VNI, from).mac = h.From
	}
	return nil
}

// asked sees to a question for the MAC of an address, or what tells of one. Only the kernel's
// vxlan asks.
func (o *Overlay) asked(m *Message, vni uint32, frame []byte) {
	c := &o.plain.count.Overlay
	q, ok := overlay.ParseNeighbour(frame)
	if !ok && o.frames != nil {
		o.frames.Receive(vni, o.host, frame) // IPv6's other messages
		return
	}
	if !ok || !o.host.Linux {
		c.Ignored++
		return
	}
	// Who asks is a member on that host; of IPv6 it may have an address that it gave itself, or
	// none yet.
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

// say sends a datagram that is no packet to a host, the way that its datagrams come: to the
// address that it has sent from, or through the tunnel.
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

// tellMoves tells Linux members of NICs that were not here before: their kernel may know them
// elsewhere.
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
