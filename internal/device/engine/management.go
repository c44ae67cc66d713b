package engine

import (
	"vrdma.dev/vrdma/internal/device/memory"
	"vrdma.dev/vrdma/internal/device/nic"
	"vrdma.dev/vrdma/internal/device/transport"
	"vrdma.dev/vrdma/internal/ib"
	"vrdma.dev/vrdma/internal/net/wire"
)

// Management takes the datagrams of a NIC's queue pair 1, which the daemon itself sends and
// receives. No program can have that queue pair, or send from it. Its methods run on the
// loop.
type Management interface {
	// ReceiveMAD takes a datagram of wire.MADSize bytes, valid during the call.
	ReceiveMAD(from, to ib.GID, mad []byte)
	// Ends reports whether such a datagram ends a connection that is known here.
	Ends(from ib.GID, mad []byte) bool
	// Deadline is when Expire has to be called; 0 is never. Where it becomes sooner, MADs.Due
	// is called.
	Deadline() ib.Time
	// Expire does what is due.
	Expire()
}

// management is queue pair 1 of all NICs.
//
//	Management ── MADs.Send ──▶ route ─┬─ a NIC of this daemon ──▶ local ──▶ its Management
//	                                   └─ another host ──▶ port
//	port ──▶ receiveMAD ─┬─ package peers, if it is a hello
//	                     └─ the Management of the NIC that has the address
//
// There may be many NICs, most of which have no deadline: those that have one are in a heap.
type management struct {
	local  queue[datagram] // on their way from us to us
	timers heap[*card]
	burst  transport.Burst
	span   memory.Span
	in     [wire.MADSize]byte
}

type datagram struct {
	card     *card // that it is for
	from, to ib.GID
	mad      [wire.MADSize]byte
}

// forget drops what is for a NIC that is gone.
func (m *management) forget(c *card) {
	if c.due.at != 0 {
		m.timers.remove(&c.due)
	}
	for range m.local.n {
		if d := *m.local.pop(); d.card != c {
			*m.local.push() = d
		}
	}
}

// MADs sends the management datagrams of a NIC. It is used on the loop.
type MADs struct {
	e *Engine
	n *nic.NIC
}

// MADs is for the Management of n.
func (e *Engine) MADs(n *nic.NIC) MADs { return MADs{e, n} }

// Now is the loop's clock.
func (m MADs) Now() ib.Time { return m.e.now }

// Due says that the Management's Deadline may be as soon as this.
func (m MADs) Due(at ib.Time) {
	if c := m.e.cards.of[m.n]; c != nil {
		m.e.mgmt.await(c, at)
	}
}

// await has the deadline of c's Management looked at when at has come, or before if that was asked for.
func (m *management) await(c *card, at ib.Time) {
	if at != 0 && (c.due.at == 0 || at < c.due.due) {
		m.timers.file(&c.due, c, at)
	}
}

// SendMAD sends a management datagram, to a NIC of this daemon or to another host. One to
// this daemon is delivered later, never from within the call.
func (m MADs) SendMAD(from, to ib.GID, mad []byte) {
	e := m.e
	c := e.cards.of[m.n]
	if c == nil {
		return
	}
	r := e.find(c, &from, &to)
	switch {
	case r.card != nil:
		if e.net.tap != nil {
			e.net.tap.Burst(e.mgmt.datagram(from, to, mad))
		}
		e.mgmt.post(r.card, from, to, mad)
	case r.under != nil:
		r.under.Send(r.network, r.from, r.to, e.mgmt.datagram(from, to, mad))
	case r.network.IsNamespace():
		e.farewell(c, from, to, mad)
	} // else it leads nowhere: lost, as on a wire
}

// post queues a datagram for a NIC of this daemon.
func (m *management) post(c *card, from, to ib.GID, mad []byte) {
	d := m.local.push()
	d.card, d.from, d.to = c, from, to
	copy(d.mad[:], mad)
}

// farewell delivers a datagram of c whose network namespace is gone. When a container is killed, its
// network may end before the daemon learns that its programs have ended, and a peer that waits for a
// message would never learn that the connection has ended. farewell tells a peer that is a NIC of this
// daemon, in whatever namespace. An address means something else in each, so the peer must also know
// this very connection. A peer on another host is out of reach until the NIC has a way again.
func (e *Engine) farewell(c *card, from, to ib.GID, mad []byte) {
	for number := range e.net.namespaces {
		if o := e.cards.at[place{number, to}]; o != nil && o != c && o.manage != nil && o.manage.Ends(from, mad) {
			e.mgmt.post(o, from, to, mad)
			return
		}
	}
}

// datagram is mad as the port sends it.
func (m *management) datagram(from, to ib.GID, mad []byte) *transport.Burst {
	m.span.Reset()
	m.span.Add(mad)
	m.burst = transport.Burst{
		Type: ib.UD, Kind: transport.KindSend, First: true, Last: true, AckReq: true, Src: wire.GSIQP, Dst: wire.GSIQP,
		SGID: from, DGID: to, PKey: 0xffff, MTU: 4096, Packets: 1, Length: uint32(len(mad)), QKey: wire.GSIQKey, Data: &m.span,
	}
	return &m.burst
}

// madsPerPass bounds what one pass delivers, and for how many NICs it sees to what is due.
const madsPerPass = 8

// manage delivers local datagrams and sees to what is due.
func (e *Engine) manage() bool {
	m := &e.mgmt
	work := false
	if due := e.net.peersDue(); due != 0 && due <= e.now {
		e.net.expirePeers(e.now)
		work = true
	}
	for i := 0; i < madsPerPass && m.local.n > 0; i++ {
		d := *m.local.pop()
		if d.card.manage != nil {
			e.worksFor(d.card)
			d.card.manage.ReceiveMAD(d.from, d.to, d.mad[:])
		}
		work = true
	}
	for range madsPerPass {
		if due := m.timers.due(); due == 0 || due > e.now {
			break
		}
		c := m.timers.pop()
		if d := c.manage.Deadline(); d != 0 && d <= e.now {
			e.worksFor(c)
			c.manage.Expire()
		}
		m.await(c, c.manage.Deadline())
		work = true
	}
	return work
}

// receiveMAD takes a datagram for queue pair 1 from another host. Only a queue pair 1 may send
// one: any other sender is a program that pretends to be a connection manager.
func (e *Engine) receiveMAD(id ib.NetworkID, b *transport.Burst) {
	c := e.cards.arrived(id, &b.DGID)
	if b.Type != ib.UD || b.Kind != transport.KindSend || b.Src != wire.GSIQP || b.QKey != wire.GSIQKey ||
		b.Data == nil || b.Data.Len() != wire.MADSize || c == nil || e.cards.at[place{id, b.SGID}] != nil {
		e.stray(id, &b.DGID, b.Packets)
		return
	}
	m := &e.mgmt
	n := 0
	for _, p := range b.Data.Pieces() {
		n += copy(m.in[n:], p.Mem)
	}
	if n != wire.MADSize {
		return
	}
	if a := e.net.of(id); a != nil && a.hello(id, c, b) {
		return
	}
	if c.manage != nil {
		e.worksFor(c)
		c.manage.ReceiveMAD(b.SGID, b.DGID, m.in[:])
	}
}
