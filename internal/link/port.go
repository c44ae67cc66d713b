package link

import (
	"errors"
	"net/netip"

	"golang.org/x/sys/unix"

	"vrdma/internal/ib"
	"vrdma/internal/transport"
	"vrdma/internal/wire"
)

const (
	// queueRoom is how many bytes of packets wait for Flush at most, and queueMost in
	// how many messages.
	queueRoom = 2 << 20
	queueMost = 4096
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

// A Receiver takes what arrives. The GIDs of a burst are what stands in its packets' IP
// header; which NIC that is for is the receiver's to know.
type Receiver interface {
	// Receive takes a burst. The burst and its data are valid during the call. ce says
	// that its packets bear the mark Congestion Experienced: the sender is owed a CNP.
	// Src is 0 unless the burst is a datagram: the wire does not say it.
	Receive(b *transport.Burst, ce bool)
	// Congested: the peer at from has seen congestion on packets from queue pair qp at to.
	Congested(qp uint32, from, to ib.GID)
}

// Counters count what passed through a port. Packets are counted one by one, however they
// were batched.
type Counters struct {
	SentPackets, SentBytes, SentCalls uint64 // bytes of UDP payload; calls are messages
	SentCNP                           uint64
	SentMulticast                     uint64 // to other hosts; the engine counts these
	SendFull                          uint64 // packets dropped because socket and queue were full
	SendErrors                        uint64 // packets that the kernel refused, for want of a route say
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
}

// A Port carries bursts to and from other hosts. It belongs to one loop.
//
// Send cuts a burst up and queues its packets; they leave with Flush, or when the queue
// is full. Poll receives.
type Port struct {
	bind  Bind
	tap   *Tap
	count Counters

	cut    Cutter
	filler map[netip.Addr]bool // who understands it
	fills  bool                // cut's dst is one of them
	queue  []Message
	room   []byte
	used   int

	join     Joiner
	in       []Message
	flow     wire.Flow
	from, to netip.AddrPort // of flow
	sgid     ib.GID
	dgid     ib.GID
	own      map[netip.Addr]bool
	isOwn    bool // from is one of them
	isSelf   bool // from is ourselves
	doubt    func(netip.Addr)
	tooLong  func(from, to netip.Addr, size int)
	id       uint16 // identification of the packet that was verified last
	longID   bool   // see LongID
}

// NewPort makes a port on top of bind, which it closes when it is closed.
func NewPort(bind Bind) *Port {
	p := &Port{
		bind: bind, room: make([]byte, queueRoom), queue: make([]Message, 0, queueMost),
		in: make([]Message, batch), own: map[netip.Addr]bool{}, filler: map[netip.Addr]bool{},
	}
	slots := make([]byte, batch*receiveRoom)
	for i := range p.in {
		p.in[i].Data = slots[i*receiveRoom : (i+1)*receiveRoom : (i+1)*receiveRoom]
	}
	return p
}

// Counters are what has been counted so far.
func (p *Port) Counters() Counters { return p.count }

// Moved is how many bytes have been sent and received so far.
func (p *Port) Moved() uint64 { return p.count.SentBytes + p.count.RcvdBytes }

// SetTap has every packet recorded; nil ends that.
func (p *Port) SetTap(t *Tap) { p.tap = t }

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

// Send queues b's packets, which travel between these addresses. It is done with b and its data when it returns. An error means
// that the sender's memory could not be read, or that b is not well-formed; what cannot be
// sent for want of room or of a route is lost, as on a wire, and counted.
func (p *Port) Send(from, to netip.Addr, b *transport.Burst) error {
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
		p.fills = p.filler[dst.Addr()]
	}
	p.cut.filler = p.fills && p.bind.Segments() > 1
	if err := p.cut.Start(b, src, dst); err != nil {
		return err
	}
	sent := uint32(0)
	for {
		if !p.makeRoom() {
			p.count.SendFull += uint64(b.Packets - sent)
			return nil
		}
		limit := p.bind.Segments()
		start := p.follow(id, src, dst, limit)
		n, segment, err := p.cut.Next(p.room[p.used:min(len(p.room), start+MaxMessage)], limit)
		if err != nil {
			p.count.Unreadable++
			return err
		}
		switch {
		case n == 0:
			return nil
		case start < p.used:
			sent += p.extend(n)
		default:
			sent += p.push(id, src, dst, n, segment)
		}
	}
}

// SendCNP queues a congestion notification for queue pair qp of the peer, from queue pair
// self.
func (p *Port) SendCNP(from, to netip.Addr, self, qp uint32) {
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
	p.push(id, src, dst, len(c.Bytes()), len(c.Bytes()))
}

// makeRoom reports whether a whole message fits into the queue, flushing it if need be.
func (p *Port) makeRoom() bool {
	if p.used+MaxMessage <= len(p.room) && len(p.queue) < cap(p.queue) {
		return true
	}
	p.Flush()
	return p.used+MaxMessage <= len(p.room) && len(p.queue) < cap(p.queue)
}

// push queues the n bytes that have been written behind what is there, and returns how
// many packets they are.
func (p *Port) push(id int, src, dst netip.AddrPort, n, segment int) uint32 {
	m := Message{Data: p.room[p.used : p.used+n : p.used+n], Segment: segment, Source: id, Local: src, Remote: dst}
	p.queue = append(p.queue, m)
	p.used += n
	k := packetsIn(&m)
	p.count.SentPackets += uint64(k)
	p.count.SentBytes += uint64(n)
	if p.tap != nil {
		p.tap.message(&m, 0)
	}
	return k
}

// follow has the cutter go on with the message queued last if what comes next may leave in
// the same call: small messages in a row, or an acknowledgement behind a request. It
// returns where in room the message begins that the next packets are for.
func (p *Port) follow(id int, src, dst netip.AddrPort, limit int) int {
	if len(p.queue) == 0 {
		return p.used
	}
	m := &p.queue[len(p.queue)-1]
	packets := len(m.Data) / m.Segment
	if packets >= limit || m.Source != id || m.Remote != dst || m.Local != src || // another way
		len(m.Data)%m.Segment != 0 || // its last packet is shorter, and has to be the last
		len(m.Data)+m.Segment > MaxMessage || !p.cut.Follow(packets, m.Segment) {
		return p.used
	}
	return p.used - len(m.Data)
}

// extend adds the n bytes that have been written behind what is there to the message
// queued last, and returns how many packets they are.
func (p *Port) extend(n int) uint32 {
	m := &p.queue[len(p.queue)-1]
	added := Message{Data: p.room[p.used : p.used+n], Segment: m.Segment, Local: m.Local, Remote: m.Remote}
	first := packetsIn(m)
	start := p.used - len(m.Data)
	p.used += n
	m.Data = p.room[start:p.used:p.used]
	k := packetsIn(&added)
	p.count.SentPackets += uint64(k)
	p.count.SentBytes += uint64(n)
	if p.tap != nil {
		p.tap.message(&added, uint16(first))
	}
	return k
}

// spread makes a number of a queue pair's that differs where those of neighbours do not.
func spread(qp uint32) uint32 { return qp * 0x9e3779b1 >> 8 }

// packetsIn is the number of datagrams in m.
func packetsIn(m *Message) uint32 {
	if m.Segment <= 0 || m.Segment >= len(m.Data) {
		return 1
	}
	return uint32((len(m.Data) + m.Segment - 1) / m.Segment)
}

// Pending reports whether packets wait for another Flush.
func (p *Port) Pending() bool { return len(p.queue) > 0 }

// Ready reports whether at least half of the queue is free, flushing it if need be. Who
// sends while it is not may find that there is no room.
func (p *Port) Ready() bool {
	if p.used*2 <= len(p.room) && len(p.queue)*2 <= cap(p.queue) {
		return true
	}
	p.Flush()
	return p.used*2 <= len(p.room) && len(p.queue)*2 <= cap(p.queue)
}

// Flush sends what is queued, as far as the sockets take it.
func (p *Port) Flush() {
	q := p.queue
	for full := false; len(q) > 0 && !full; {
		n, err := p.bind.Send(q)
		p.count.SentCalls += uint64(n)
		q = q[n:]
		switch {
		case len(q) == 0:
		case err == nil || errors.Is(err, ErrFull):
			full = true
		case packetsIn(&q[0]) > 1:
			// The device does not segment, or one is too long for the way: that
			// must not cost the others.
			if full = !p.split(&q[0]); !full {
				q = q[1:]
			}
		default:
			p.refused(&q[0], err)
			q = q[1:]
		}
	}
	if len(q) == 0 {
		p.queue, p.used = p.queue[:0], 0
		return
	}
	p.queue = append(p.queue[:0], q...)
}

// split sends the datagrams of m, which was refused as a whole, one by one. They
// leave with identification 0, so each ICRC has to be made anew. It reports whether all
// have been dealt with; otherwise the socket is full, and m is what is left.
func (p *Port) split(m *Message) bool {
	one := [1]Message{*m}
	for len(m.Data) > 0 {
		n := min(m.Segment, len(m.Data))
		if c, err := wire.Parse(m.Data[:n]); err == nil {
			p.cut.Seal(c, m.Local, m.Remote)
		}
		one[0].Data, one[0].Segment = m.Data[:n], 0
		switch _, err := p.bind.Send(one[:]); {
		case errors.Is(err, ErrFull):
			return false
		case err != nil:
			p.refused(&one[0], err)
		default:
			p.count.SentCalls++
		}
		m.Data = m.Data[n:]
	}
	return true
}

// refused notes that the kernel does not send a datagram.
func (p *Port) refused(m *Message, err error) {
	p.count.SendErrors++
	if p.tooLong == nil || !errors.Is(err, unix.EMSGSIZE) {
		return
	}
	size := wire.UDPSize + len(m.Data)
	if m.Remote.Addr().Is4() {
		size += wire.IPv4Size
	} else {
		size += wire.IPv6Size
	}
	p.tooLong(m.Local.Addr(), m.Remote.Addr(), size)
}

// Close closes the bind.
func (p *Port) Close() error { return p.bind.Close() }
