package roce

import (
	"errors"
	"net/netip"

	"golang.org/x/sys/unix"

	"vrdma.dev/vrdma/internal/device/transport"
	"vrdma.dev/vrdma/internal/ib"
	"vrdma.dev/vrdma/internal/net/overlay"
	"vrdma.dev/vrdma/internal/net/wire"
)

const (
	// batch is the number of messages received in one call.
	batch = 16
	// receiveRoom is the buffer for one received message: the maximum that GRO merges.
	receiveRoom = 1 << 16
	// ownIDs is the number of IP identifications that vrdma hosts use. The ICRC covers the identification, but
	// a UDP socket does not show it, so the receiver accepts any that fits. With 128 identifications a corrupted
	// packet passes once in 2^25 times; with all 65536, once in 2^16.
	ownIDs = 128
)

// Counters count the traffic of a port. Packets are counted individually, however they were batched.
type Counters struct {
	SentPackets   uint64 `cbor:"1,keyasint,omitempty"` // bytes of UDP payload; a call is a message
	SentBytes     uint64 `cbor:"2,keyasint,omitempty"`
	SentCalls     uint64 `cbor:"3,keyasint,omitempty"`
	SentCNP       uint64 `cbor:"4,keyasint,omitempty"`
	SentMulticast uint64 `cbor:"5,keyasint,omitempty"` // multicast packets to other hosts, counted by the engine
	SendFull      uint64 `cbor:"6,keyasint,omitempty"` // packets dropped because socket and queue were full
	SendErrors    uint64 `cbor:"7,keyasint,omitempty"` // packets that the kernel refused, for instance because there is no route or tunnel
	Unreadable    uint64 `cbor:"8,keyasint,omitempty"` // bursts whose data could not be read
	NoSource      uint64 `cbor:"9,keyasint,omitempty"` // bursts from an address that the port does not have

	RcvdPackets   uint64 `cbor:"10,keyasint,omitempty"`
	RcvdBytes     uint64 `cbor:"11,keyasint,omitempty"`
	RcvdCalls     uint64 `cbor:"12,keyasint,omitempty"`
	RcvdBursts    uint64 `cbor:"13,keyasint,omitempty"`
	RcvdMulticast uint64 `cbor:"14,keyasint,omitempty"`
	RcvdCNP       uint64 `cbor:"15,keyasint,omitempty"`
	RcvdMarked    uint64 `cbor:"16,keyasint,omitempty"` // messages with the Congestion Experienced mark
	Malformed     uint64 `cbor:"17,keyasint,omitempty"` // dropped: not a known packet
	BadICRC       uint64 `cbor:"18,keyasint,omitempty"` // dropped: corrupted
	FromSelf      uint64 `cbor:"19,keyasint,omitempty"` // dropped: source is an address of this port, so a local program forged it
	Strays        uint64 `cbor:"20,keyasint,omitempty"` // dropped: no such queue pair; the port's owner counts them
	Nowhere       uint64 `cbor:"21,keyasint,omitempty"` // part of Strays: no such NIC
	WrongPort     uint64 `cbor:"23,keyasint,omitempty"` // dropped: from a port that the sending vrdma host does not send from

	Overlay OverlayCounters `cbor:"22,keyasint,omitzero"`
}

// Add returns the sum of both.
func (c Counters) Add(d Counters) Counters {
	c.SentPackets += d.SentPackets
	c.SentBytes += d.SentBytes
	c.SentCalls += d.SentCalls
	c.SentCNP += d.SentCNP
	c.SentMulticast += d.SentMulticast
	c.SendFull += d.SendFull
	c.SendErrors += d.SendErrors
	c.Unreadable += d.Unreadable
	c.NoSource += d.NoSource
	c.RcvdPackets += d.RcvdPackets
	c.RcvdBytes += d.RcvdBytes
	c.RcvdCalls += d.RcvdCalls
	c.RcvdBursts += d.RcvdBursts
	c.RcvdMulticast += d.RcvdMulticast
	c.RcvdCNP += d.RcvdCNP
	c.RcvdMarked += d.RcvdMarked
	c.Malformed += d.Malformed
	c.BadICRC += d.BadICRC
	c.FromSelf += d.FromSelf
	c.Strays += d.Strays
	c.Nowhere += d.Nowhere
	c.WrongPort += d.WrongPort
	if d.Overlay != (OverlayCounters{}) {
		c.Overlay = d.Overlay // only an Overlay has them
	}
	return c
}

// OverlayCounters count datagrams for virtual networks that were dropped, by reason, and answered. Counters has the
// packets sent and received.
type OverlayCounters struct {
	BadHead    uint64         `cbor:"1,keyasint,omitempty"` // not VXLAN with a RoCEv2 packet or a question
	Strangers  uint64         `cbor:"2,keyasint,omitempty"` // from a host that is in no network of this host
	NoNetwork  uint64         `cbor:"3,keyasint,omitempty"` // for a network that has no NIC here
	NotMember  uint64         `cbor:"4,keyasint,omitempty"` // from a host that is not in the datagram's network
	Spoofed    uint64         `cbor:"5,keyasint,omitempty"` // from an address or a MAC that the sending host does not have
	NotHere    uint64         `cbor:"6,keyasint,omitempty"` // for an address that is not on this host, or with another MAC
	Unsealed   uint64         `cbor:"7,keyasint,omitempty"` // unencrypted, for an encrypted network
	Tunnel     TunnelCounters `cbor:"8,keyasint,omitzero"`
	Ignored    uint64         `cbor:"9,keyasint,omitempty"`  // sent by Linux itself: group reports, router solicitations, other protocols
	Questions  uint64         `cbor:"10,keyasint,omitempty"` // MAC requests for NICs here: answered
	Unanswered uint64         `cbor:"11,keyasint,omitempty"` // MAC requests for others: not answered
	News       uint64         `cbor:"12,keyasint,omitempty"` // announcements of NICs that are new here
	WrongPort  uint64         `cbor:"13,keyasint,omitempty"` // from a port that the sending host's daemon does not send from
}

// TunnelCounters count the packets that the tunnel of encrypted networks dropped.
type TunnelCounters struct {
	Strangers uint64 `cbor:"1,keyasint,omitempty"` // datagrams from an address of no host with a tunnel
	NoSession uint64 `cbor:"2,keyasint,omitempty"` // packets for a host that does not answer, or without a tunnel
	Refused   uint64 `cbor:"3,keyasint,omitempty"` // packets from a host with a tunnel that are not for this host
	Full      uint64 `cbor:"4,keyasint,omitempty"` // packets dropped because the tunnel or the loop was too slow
}

// OverlayReasons are the reasons for dropping datagrams of virtual networks, in the order of Dropped.
var OverlayReasons = []string{"bad_head", "stranger", "no_network", "not_member", "spoofed", "not_here", "not_encrypted", "ignored", "unanswered",
	"tunnel_stranger", "tunnel_no_session", "tunnel_refused", "tunnel_full", "wrong_port"}

// Dropped returns the number of dropped datagrams for each of OverlayReasons.
func (c *OverlayCounters) Dropped() []uint64 {
	return []uint64{c.BadHead, c.Strangers, c.NoNetwork, c.NotMember, c.Spoofed, c.NotHere, c.Unsealed, c.Ignored, c.Unanswered,
		c.Tunnel.Strangers, c.Tunnel.NoSession, c.Tunnel.Refused, c.Tunnel.Full, c.WrongPort}
}

// A Port carries bursts to and from other hosts. It belongs to one loop.
//
// Send splits a burst and queues its packets; Flush sends them, as does a full queue. Poll receives.
type Port struct {
	outbox
	bind     Bind
	segments func() int // the bind's method value, stored because creating one allocates

	cut    Cutter
	filler map[netip.Addr]bool // peers that understand filler
	long   map[netip.Addr]bool // peers that understand long filler
	fills  bool                // the destination of cut understands filler
	longs  bool

	inbound
	from, to netip.AddrPort // addresses of flow
	own      map[netip.Addr]ownHost
	isOwn    bool // from is a vrdma host
	isSelf   bool // from is an address of this port
	strange  bool // from is a vrdma host, and a port from which it does not send
	doubt    func(netip.Addr)
	stranger func(netip.Addr)
	tooLong  func(from, to netip.Addr, size int)
}

// ownHost is what a Port knows of a vrdma host.
type ownHost struct {
	shortIDs bool             // its packets have identifications below ownIDs
	ports    *overlay.PortSet // the ports from which it sends
}

// NewPort returns a port on bind; Close closes the bind.
func NewPort(bind Bind) *Port {
	p := &Port{bind: bind, own: map[netip.Addr]ownHost{}, filler: map[netip.Addr]bool{}, long: map[netip.Addr]bool{}}
	p.in = receiveSlots()
	p.outbox = newOutbox(bind)
	p.segments = bind.Segments
	p.outbox.reseal, p.outbox.lost = p.reseal, p.tooLongFor
	return p
}

// receiveSlots returns buffers for a batch of messages.
func receiveSlots() []Message {
	in := make([]Message, batch)
	slots := make([]byte, batch*receiveRoom)
	for i := range in {
		in[i].Data = slots[i*receiveRoom : (i+1)*receiveRoom : (i+1)*receiveRoom]
	}
	return in
}

// SetNetwork sets the network of the port's addresses. The default is the hosts' own network.
func (p *Port) SetNetwork(n ib.NetworkID) { p.network = n }

// Counters implements Underlay.
func (p *Port) Counters() Counters { return p.count }

// SetOwn sets whether a peer is a vrdma host. From a vrdma host, packets with an identification that vrdma hosts do
// not use count as corrupted.
func (p *Port) SetOwn(peer netip.Addr, own bool) {
	h := p.own[bare(peer)]
	h.shortIDs = own
	p.setOwn(peer, h)
}

// SetPorts sets the ports from which a vrdma host sends; nil: any. Packets from other ports are dropped, except those by
// which hosts recognise each other: their nonce authenticates them.
func (p *Port) SetPorts(peer netip.Addr, ports []uint16) {
	h := p.own[bare(peer)]
	h.ports = overlay.NewPortSet(ports)
	p.setOwn(peer, h)
}

func (p *Port) setOwn(peer netip.Addr, h ownHost) {
	if h.shortIDs || h.ports != nil {
		p.own[bare(peer)] = h
	} else {
		delete(p.own, bare(peer))
	}
	p.from = netip.AddrPort{} // clear the cache
}

// bare returns an address as the keys of sets have it.
func bare(a netip.Addr) netip.Addr { return a.Unmap().WithZone("") }

// SetFiller sets whether a peer understands filler.
func (p *Port) SetFiller(peer netip.Addr, understands bool) {
	note(p.filler, peer, understands)
	p.cut.dst = netip.AddrPort{} // clear the cache
}

// SetLongFiller sets whether a peer understands long filler. It has no effect for a peer that does not understand
// filler.
func (p *Port) SetLongFiller(peer netip.Addr, understands bool) {
	note(p.long, peer, understands)
	p.cut.dst = netip.AddrPort{} // clear the cache
}

// note adds a peer to a set, or removes it.
func note(set map[netip.Addr]bool, peer netip.Addr, in bool) {
	peer = bare(peer)
	if in {
		set[peer] = true
	} else {
		delete(set, peer)
	}
}

// OnDoubt sets the function that is called when a vrdma host seems to send a packet that no vrdma host sends. The
// packet may be corrupted with a matching ICRC, or another host has the address now, or forges it. The port drops
// such packets until SetOwn says that the peer is not a vrdma host: a forged packet must not weaken the check.
func (p *Port) OnDoubt(f func(peer netip.Addr)) { p.doubt = f }

// OnStrange sets the function that is called when a packet came from a port that its host has not announced.
func (p *Port) OnStrange(f func(peer netip.Addr)) { p.stranger = f }

// Strange reports whether the burst passed to Receive came from such a port.
func (p *Port) Strange() bool { return p.strange }

// OnTooLong sets the function that is called when the kernel refuses a packet because it is too long for the
// interface or the path. size includes all headers from the IP header on.
func (p *Port) OnTooLong(f func(from, to netip.Addr, size int)) { p.tooLong = f }

// LongID reports whether the burst passed to Receive came with an identification that no vrdma host uses.
func (p *Port) LongID() bool { return p.longID }

// Send implements Underlay. A port has one network and ignores the argument.
func (p *Port) Send(_ ib.NetworkID, from, to netip.Addr, b *transport.Burst) error {
	id, src, ok := p.bind.Source(from, b.Dst)
	if !ok {
		p.count.NoSource++
		return nil
	}
	dst := netip.AddrPortFrom(to, wire.Port)
	if dst.Addr().Is4() != src.Addr().Is4() {
		p.count.NoSource++
		return nil
	}
	if p.cut.dst != dst {
		p.fills, p.longs = p.filler[dst.Addr()], p.long[dst.Addr()]
	}
	p.cut.filler, p.cut.long = p.fills && p.segments() > 1, p.longs
	if err := p.cut.Start(b, src, dst); err != nil {
		return err
	}
	return p.put(&p.cut, b, Message{Source: id, Local: src, Remote: dst}, p.segments)
}

// SendGroup implements Underlay: the network makes the copies.
func (p *Port) SendGroup(n ib.NetworkID, from, group netip.Addr, b *transport.Burst) int {
	if from.IsLoopback() {
		return 0
	}
	p.Send(n, from, group, b)
	return 1
}

// SendCNP implements Underlay.
func (p *Port) SendCNP(_ ib.NetworkID, from, to netip.Addr, self, qp uint32) {
	id, src, ok := p.bind.Source(from, qp)
	dst := netip.AddrPortFrom(to, wire.Port)
	if !ok || dst.Addr().Is4() != src.Addr().Is4() {
		p.count.NoSource++
		return
	}
	if !p.makeRoom() {
		p.count.SendFull++
		return
	}
	c := wire.MakeCNP(p.room[p.used:], qp)
	p.cut.Seal(c, src, dst)
	p.count.SentCNP++
	p.push(Message{Segment: len(c.Bytes()), Source: id, Local: src, Remote: dst}, len(c.Bytes()))
}

// spread hashes a queue pair number, so that neighbouring numbers get different ports.
func spread(qp uint32) uint32 { return qp * 0x9e3779b1 >> 8 }

// reseal computes the ICRC of a datagram that was queued with others and is sent alone: its identification becomes
// 0.
func (p *Port) reseal(m *Message, data []byte) {
	if c, err := wire.Parse(data); err == nil {
		p.cut.Seal(c, m.Local, m.Remote)
	}
}

// tooLongFor reports a datagram that was refused because it is too long.
func (p *Port) tooLongFor(m *Message, err error) { tellTooLong(p.tooLong, m, err) }

// tellTooLong reports a datagram that was refused because it is too long.
func tellTooLong(tell func(from, to netip.Addr, size int), m *Message, err error) {
	if tell == nil || !errors.Is(err, unix.EMSGSIZE) {
		return
	}
	size := wire.UDPSize + len(m.Data)
	if m.Remote.Addr().Is4() {
		size += wire.IPv4Size
	} else {
		size += wire.IPv6Size
	}
	tell(m.Local.Addr(), m.Remote.Addr(), size)
}

// Close closes the bind.
func (p *Port) Close() error { return p.bind.Close() }
