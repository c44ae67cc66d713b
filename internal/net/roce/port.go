package roce

import (
	"errors"
	"net/netip"

	"golang.org/x/sys/unix"

	"vrdma.dev/vrdma/internal/device/transport"
	"vrdma.dev/vrdma/internal/ib"
	"vrdma.dev/vrdma/internal/net/wire"
)

const (
	// batch is how many messages are received in one call.
	batch = 16
	// receiveRoom is the room for one message received: what GRO merges at most.
	receiveRoom = 1 << 16
	// ownIDs is the number of IP identifications that vrdma hosts use. The ICRC covers
	// the identification, but a UDP socket does not show it, so the receiver takes any
	// that fits. With 128 of them a damaged packet passes once in 2^25 times; with all
	// 65536, once in 2^16.
	ownIDs = 128
)

// Counters count what passed through a port. Packets are counted one by one, however they
// were batched.
type Counters struct {
	SentPackets, SentBytes, SentCalls uint64 // bytes of UDP payload; calls are messages
	SentCNP                           uint64
	SentMulticast                     uint64 // to other hosts; the engine counts these
	SendFull                          uint64 // packets dropped because socket and queue were full
	SendErrors                        uint64 // packets that the kernel refused, for want of a route say, or a tunnel
	Unreadable                        uint64 // bursts whose data could not be read
	NoSource                          uint64 // bursts from an address that is not ours

	RcvdPackets, RcvdBytes, RcvdCalls uint64
	RcvdBursts                        uint64
	RcvdMulticast                     uint64
	RcvdCNP                           uint64
	RcvdMarked                        uint64 // messages with the mark Congestion Experienced
	Malformed                         uint64 // dropped: not a packet that we know
	BadICRC                           uint64 // dropped: damaged
	FromSelf                          uint64 // dropped: from an address of ours, which only a program that pretends can send
	Strays                            uint64 // dropped: for no queue pair; the port's owner counts them
	Nowhere                           uint64 // those among them that were for no NIC

	Overlay OverlayCounters
}

// Add is the sum of both.
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
	if d.Overlay != (OverlayCounters{}) {
		c.Overlay = d.Overlay // only an Overlay has these
	}
	return c
}

// OverlayCounters count what came for virtual networks and was dropped, by why, and what was
// answered. What is sent and received is among Counters' packets.
type OverlayCounters struct {
	BadHead    uint64 // not VXLAN with a RoCEv2 packet or a question, as far as it goes
	Strangers  uint64 // from a host that is in no network of ours
	NoNetwork  uint64 // for a network that has no NIC here
	NotMember  uint64 // from a host that is not in that network
	Spoofed    uint64 // from an address or a MAC that the sending host does not have
	NotHere    uint64 // for an address that is not on this host, or with another MAC
	Unsealed   uint64 // for an encrypted network, and not encrypted
	Tunnel     TunnelCounters
	Ignored    uint64 // what Linux sends of itself: reports of groups, questions for routers, other protocols
	Questions  uint64 // for MACs of NICs here: answered
	Unanswered uint64 // for others: not answered
	News       uint64 // told of NICs that have come here
}

// TunnelCounters count what the way of encrypted networks has dropped.
type TunnelCounters struct {
	Strangers uint64 // datagrams from an address of no host that there is a tunnel to
	NoSession uint64 // packets for a host that does not answer, or that there is no tunnel to
	Refused   uint64 // packets from a host with a tunnel that are none for this one
	Full      uint64 // packets that the tunnel or the loop could not keep up with
}

// OverlayReasons are why datagrams for virtual networks are dropped, in order, and Dropped is how
// many were for each.
var OverlayReasons = []string{"bad_head", "stranger", "no_network", "not_member", "spoofed", "not_here", "not_encrypted", "ignored", "unanswered",
	"tunnel_stranger", "tunnel_no_session", "tunnel_refused", "tunnel_full"}

// Dropped counts what was dropped, by OverlayReasons.
func (c *OverlayCounters) Dropped() []uint64 {
	return []uint64{c.BadHead, c.Strangers, c.NoNetwork, c.NotMember, c.Spoofed, c.NotHere, c.Unsealed, c.Ignored, c.Unanswered,
		c.Tunnel.Strangers, c.Tunnel.NoSession, c.Tunnel.Refused, c.Tunnel.Full}
}

// A Port carries bursts to and from other hosts. It belongs to one loop.
//
// Send cuts a burst up and queues its packets; they leave with Flush, or when the queue
// is full. Poll receives.
type Port struct {
	outbox
	bind     Bind
	segments func() int // the bind's, kept: making the method value would allocate at each send

	cut    Cutter
	filler map[netip.Addr]bool // who understands it
	long   map[netip.Addr]bool // and long filler
	fills  bool                // cut's dst is one of them
	longs  bool

	inbound
	from, to netip.AddrPort // of flow
	own      map[netip.Addr]bool
	isOwn    bool // from is one of them
	isSelf   bool // from is ourselves
	doubt    func(netip.Addr)
	tooLong  func(from, to netip.Addr, size int)
}

// NewPort makes a port on top of bind, which it closes when it is closed.
func NewPort(bind Bind) *Port {
	p := &Port{bind: bind, own: map[netip.Addr]bool{}, filler: map[netip.Addr]bool{}, long: map[netip.Addr]bool{}}
	p.in = receiveSlots()
	p.outbox = newOutbox(bind)
	p.segments = bind.Segments
	p.outbox.reseal, p.outbox.lost = p.reseal, p.tooLongFor
	return p
}

// receiveSlots is room for a batch of messages.
func receiveSlots() []Message {
	in := make([]Message, batch)
	slots := make([]byte, batch*receiveRoom)
	for i := range in {
		in[i].Data = slots[i*receiveRoom : (i+1)*receiveRoom : (i+1)*receiveRoom]
	}
	return in
}

// SetNetwork says which network the port's addresses belong to. Without it they are those of the
// hosts' own network.
func (p *Port) SetNetwork(n ib.NetworkID) { p.network = n }

// Counters implements Underlay.
func (p *Port) Counters() Counters { return p.count }

// SetOwn says whether a peer is a vrdma host. Of those, packets with an identification
// that no vrdma host sends are taken for damaged.
func (p *Port) SetOwn(peer netip.Addr, own bool) {
	note(p.own, peer, own)
	p.from = netip.AddrPort{} // look again
}

// SetFiller says whether a peer understands filler.
func (p *Port) SetFiller(peer netip.Addr, understands bool) {
	note(p.filler, peer, understands)
	p.cut.dst = netip.AddrPort{} // look again
}

// SetLongFiller says whether a peer understands long filler, of which none is sent to one that does not
// understand filler.
func (p *Port) SetLongFiller(peer netip.Addr, understands bool) {
	note(p.long, peer, understands)
	p.cut.dst = netip.AddrPort{} // look again
}

// note puts a peer into a set, or takes it out.
func note(set map[netip.Addr]bool, peer netip.Addr, in bool) {
	peer = peer.Unmap().WithZone("")
	if in {
		set[peer] = true
	} else {
		delete(set, peer)
	}
}

// OnDoubt sets what is called when a packet comes from a vrdma host that no vrdma host
// sends: chance has made a damaged packet look whole, or somebody else has the address now,
// or forges it. The packet is dropped, and so are others like it until SetOwn says that the
// peer is no vrdma host: a packet that anybody can send must not weaken the check.
func (p *Port) OnDoubt(f func(peer netip.Addr)) { p.doubt = f }

// OnTooLong sets what is called when the kernel refuses a packet, of size bytes with all its
// headers from IP's on, because the interface or the way does not take so long ones.
func (p *Port) OnTooLong(f func(from, to netip.Addr, size int)) { p.tooLong = f }

// LongID reports whether the burst that Receive is called with came with an identification
// that no vrdma host sends.
func (p *Port) LongID() bool { return p.longID }

// Send implements Underlay. A port has one network: it does not look at which is asked for.
func (p *Port) Send(_ ib.NetworkID, from, to netip.Addr, b *transport.Burst) error {
	id, src, ok := p.bind.Source(from, spread(b.Src))
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
	id, src, ok := p.bind.Source(from, spread(self))
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

// spread makes a number of a queue pair's that differs where those of neighbours do not.
func spread(qp uint32) uint32 { return qp * 0x9e3779b1 >> 8 }

// reseal makes the ICRC of a datagram anew that leaves alone and was to leave with others: its
// identification will be 0.
func (p *Port) reseal(m *Message, data []byte) {
	if c, err := wire.Parse(data); err == nil {
		p.cut.Seal(c, m.Local, m.Remote)
	}
}

// tooLongFor tells of a datagram that was refused because it is too long.
func (p *Port) tooLongFor(m *Message, err error) { tellTooLong(p.tooLong, m, err) }

// tellTooLong tells of a datagram that was refused because it is too long.
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
