package engine

import (
	"time"

	"vrdma.dev/vrdma/internal/device/fifo"
	"vrdma.dev/vrdma/internal/device/memory"
	"vrdma.dev/vrdma/internal/device/nic"
	"vrdma.dev/vrdma/internal/device/transport"
	"vrdma.dev/vrdma/internal/ib"
	"vrdma.dev/vrdma/internal/net/wire"
)

// Management handles the datagrams of a NIC's queue pair 1, which the daemon itself sends and
// receives. No program can have that queue pair, or send from it. Its methods run on the loop.
type Management interface {
	// ReceiveMAD takes a datagram of wire.MADSize bytes, valid during the call.
	ReceiveMAD(from, to ib.GID, mad []byte)
	// Ends reports whether such a datagram ends a connection of this NIC.
	Ends(from ib.GID, mad []byte) bool
	// Deadline is when Expire has to be called; 0 is never. When it becomes sooner, the
	// Management calls MADs.Due.
	Deadline() ib.Time
	// Expire handles what is due.
	Expire()
}

// management is queue pair 1 of all NICs.
//
//	Management ── MADs.Send ──▶ route ─┬─ a NIC of this daemon ──▶ local ──▶ its Management
//	                                   └─ another host ──▶ port
//	port ──▶ receive ─┬─ package peers, if it is a hello
//	                  └─ the Management of the NIC that has the address
//
// There may be many NICs, most of them without a deadline. A heap holds those that have one.
type management struct {
	local  fifo.Queue[datagram] // from one NIC of this daemon to another
	timers heap[*adapter]
	burst  transport.Burst
	span   memory.Span
	in     [wire.MADSize]byte // the datagram being received

	clock    *clock
	adapters *adapters
	net      *network
}

type datagram struct {
	adapter  *adapter // the destination
	from, to ib.GID
	mad      [wire.MADSize]byte
}

// forget drops the deadline and the datagrams of a removed NIC.
func (m *management) forget(a *adapter) {
	if a.due.at != 0 {
		m.timers.remove(&a.due)
	}
	for range m.local.Len() {
		if d := *m.local.Pop(); d.adapter != a {
			*m.local.Push() = d
		}
	}
}

// MADs sends the management datagrams of a NIC. It is used on the loop.
type MADs struct {
	m *management
	n *nic.NIC
}

// MADs returns the sender for the Management of n.
func (e *Engine) MADs(n *nic.NIC) MADs { return MADs{&e.first.mgmt, n} }

// Now is the loop's time.
func (s MADs) Now() ib.Time { return s.m.clock.now }

// Due announces that the Management's Deadline may be as soon as at.
func (s MADs) Due(at ib.Time) {
	if a := s.m.adapters.of[s.n]; a != nil {
		s.m.await(a, at)
	}
}

// await makes the loop look at the deadline of a's Management at this time, or before if that was
// requested already.
func (m *management) await(a *adapter, at ib.Time) {
	if at != 0 && (a.due.at == 0 || at < a.due.due) {
		m.timers.file(&a.due, a, at)
	}
}

// SendMAD sends a management datagram to a NIC of this daemon or to another host. A NIC of this
// daemon receives it later, never within the call.
func (s MADs) SendMAD(from, to ib.GID, mad []byte) {
	m := s.m
	a := m.adapters.of[s.n]
	if a == nil || m.loses(a, &to) {
		return
	}
	r := m.adapters.find(a, &from, &to)
	switch {
	case r.adapter != nil:
		if m.net.tap != nil {
			m.net.tap.Burst(m.datagram(from, to, mad))
		}
		m.post(r.adapter, from, to, mad)
	case r.under != nil:
		r.under.Send(r.network, r.from, r.to, m.datagram(from, to, mad))
	case r.network.IsNamespace():
		m.postAcross(a, from, to, mad)
	} // else there is no way: it is lost, as on a wire
}

// loses reports whether datagrams between a and a peer are lost on purpose: the port is down, or the peer has vanished.
func (m *management) loses(a *adapter, peer *ib.GID) bool {
	for _, p := range a.nic.Faults() {
		if p.Gone(time.Duration(m.clock.now), peer.Addr()) {
			return true
		}
	}
	return a.nic.Face().Down
}

// post queues a datagram for a NIC of this daemon.
func (m *management) post(a *adapter, from, to ib.GID, mad []byte) {
	d := m.local.Push()
	d.adapter, d.from, d.to = a, from, to
	copy(d.mad[:], mad)
}

// postAcross delivers a datagram of a whose network namespace is gone. When a container is killed,
// its network may end before the daemon learns that its programs have ended. A peer that waits for
// a message would then never learn that the connection has ended. postAcross tells a peer that is
// a NIC of this daemon, in whatever namespace. The same address may belong to other NICs in other
// namespaces, so the peer must also have this very connection. A peer on another host is
// unreachable until the NIC has a way again.
func (m *management) postAcross(a *adapter, from, to ib.GID, mad []byte) {
	for number := range m.net.namespaces {
		if o := m.adapters.at[netAddr{number, to}]; o != nil && o != a && o.manage != nil && o.manage.Ends(from, mad) {
			m.post(o, from, to, mad)
			return
		}
	}
}

// datagram returns mad as a burst.
func (m *management) datagram(from, to ib.GID, mad []byte) *transport.Burst {
	m.span.Reset()
	m.span.Add(mad)
	m.burst = transport.Burst{
		Type: ib.UD, Kind: transport.KindSend, First: true, Last: true, AckReq: true, Src: wire.GSIQP, Dst: wire.GSIQP,
		SGID: from, DGID: to, PKey: 0xffff, MTU: 4096, Packets: 1, Length: uint32(len(mad)), QKey: wire.GSIQKey, Data: &m.span,
	}
	return &m.burst
}

// madsPerPass bounds the datagrams that one pass delivers, and the deadlines that it handles.
const madsPerPass = 8

// run delivers local datagrams and handles deadlines. It reports whether there were any.
func (m *management) run() bool {
	now, work := m.clock.now, false
	if due := m.net.peersDue(); due != 0 && due <= now {
		m.net.expireHosts(now)
		work = true
	}
	for i := 0; i < madsPerPass && m.local.Len() > 0; i++ {
		d := *m.local.Pop()
		if d.adapter.manage != nil && !d.adapter.suspended && !m.loses(d.adapter, &d.from) {
			m.clock.worksFor(d.adapter)
			d.adapter.manage.ReceiveMAD(d.from, d.to, d.mad[:])
		}
		work = true
	}
	for range madsPerPass {
		if due := m.timers.due(); due == 0 || due > m.clock.now {
			break
		}
		a := m.timers.pop()
		if work = true; a.suspended {
			continue // Continue looks at its deadline again
		}
		if d := a.manage.Deadline(); d != 0 && d <= m.clock.now {
			m.clock.worksFor(a)
			a.manage.Expire()
		}
		m.await(a, a.manage.Deadline())
	}
	return work
}

// receive takes a datagram for queue pair 1 from another host. Only a queue pair 1 may send one:
// any other sender is a program that pretends to be a connection manager.
func (m *management) receive(id ib.NetworkID, b *transport.Burst) {
	a := m.adapters.arrived(id, &b.DGID)
	if b.Type != ib.UD || b.Kind != transport.KindSend || b.Src != wire.GSIQP || b.QKey != wire.GSIQKey ||
		b.Data == nil || b.Data.Len() != wire.MADSize || a == nil || m.adapters.at[netAddr{id, b.SGID}] != nil {
		m.net.stray(id, &b.DGID, b.Packets)
		return
	}
	n := 0
	for _, p := range b.Data.Pieces() {
		n += copy(m.in[n:], p.Mem)
	}
	if n != wire.MADSize {
		return
	}
	if u := m.net.of(id); u != nil && u.hello(id, a, b) {
		return
	}
	if a.manage != nil && !a.suspended && !m.loses(a, &b.SGID) {
		m.clock.worksFor(a)
		a.manage.ReceiveMAD(b.SGID, b.DGID, m.in[:])
	}
}
