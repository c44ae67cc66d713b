package engine

import (
	"fmt"
	"net/netip"

	"vrdma.dev/vrdma/internal/device/fifo"
	"vrdma.dev/vrdma/internal/device/nic"
	"vrdma.dev/vrdma/internal/device/transport"
	"vrdma.dev/vrdma/internal/ib"
)

// An adapter is the loop's record of a NIC. An engine serves many. Queue pair numbers, handles,
// keys and groups belong to one NIC, so every lookup begins with the adapter.
//
//	sender ── NIC, GID ──▶ Resolver ──▶ Way ─┬─ a NIC of this daemon ──▶ adapter ──▶ QP
//	                                         └─ underlay addresses ──▶ port
//	packet ── destination address ──▶ adapters.at ──▶ adapter ──▶ QP
type adapter struct {
	nic    *nic.NIC
	part   *nic.Part          // what this loop counts for it
	manage Management         // receives its management datagrams; nil: they are dropped
	due    timer              // deadline of manage
	groups map[ib.GID]netAddr // multicast groups that it has joined, and their underlay addresses
	band   band
	// What follows has only the first loop, if there are others, see tenants.go.
	owner  *owner // its tenant
	capped bool
	late   fifo.Queue[*task] // queue pairs with an ACK that waits until the NIC is under its cap
	held   fifo.Queue[*task] // queue pairs that wait to send to the NIC, see caps.go
	// It is being moved to another host, see suspend.go.
	suspended bool
}

// adapters are the NICs that the loop serves, by NIC and by the address that packets arrive at.
type adapters struct {
	of map[*nic.NIC]*adapter
	at map[netAddr]*adapter
	// The result of the last lookup in at.
	lastAddr netAddr
	last     *adapter

	suspended int // how many NICs are suspended

	resolver nic.Resolver
	under    *underlays // for routes to other hosts
}

// A netAddr is an address in one of the networks between hosts.
type netAddr struct {
	network ib.NetworkID
	gid     ib.GID
}

// Add makes the engine serve a NIC. m receives the NIC's management datagrams; nil: they are
// dropped. Add is called before Start, or on the loop. The Resolver must know the NIC, and no
// other NIC may have one of its addresses on the network.
func (e *Engine) Add(n *nic.NIC, m Management) error {
	a, err := e.first.adapters.add(n, m)
	if err != nil {
		return err
	}
	for _, o := range e.loops.others {
		o.serve(n)
	}
	if len(e.loops.others) > 0 {
		e.loops.own(a, defaultTenant)
	}
	if m != nil {
		e.first.mgmt.await(a, m.Deadline())
	}
	e.first.sched.addNIC(a)
	return nil
}

// Remove undoes Add. The NIC has no sessions any more. It runs on the loop.
func (e *Engine) Remove(n *nic.NIC) {
	a := e.first.adapters.of[n]
	if a == nil {
		return
	}
	if len(n.Faults()) > 0 {
		e.SetFaults(n, nil)
	}
	for _, o := range e.loops.others {
		o.unserve(n)
	}
	e.loops.own(a, "")
	e.first.adapters.wake(a)
	e.first.adapters.remove(a)
	e.first.sched.removeNIC(a)
	if e.first.clock.of == a {
		e.first.clock.of = nil
	}
	e.first.mgmt.forget(a)
}

// add makes the record of a NIC.
func (l *adapters) add(n *nic.NIC, m Management) (*adapter, error) {
	if l.of[n] != nil {
		return nil, fmt.Errorf("engine: the NIC %s is there already", n.Name)
	}
	a := &adapter{nic: n, part: n.Part(), manage: m, groups: make(map[ib.GID]netAddr)}
	at := l.addresses(n)
	for _, p := range at {
		if o := l.at[p]; o != nil {
			return nil, fmt.Errorf("engine: the address %v of NIC %s is that of %s: give it another", p.gid.Addr(), n.Name, o.nic.Name)
		}
	}
	for _, p := range at {
		l.at[p] = a
	}
	l.of[n] = a
	l.last = nil
	return a, nil
}

// remove undoes add.
func (l *adapters) remove(a *adapter) {
	delete(l.of, a.nic)
	l.dropAddresses(a)
}

// addresses returns the addresses at which packets from other hosts arrive for a NIC, as they
// stand in the packets.
func (l *adapters) addresses(n *nic.NIC) (list []netAddr) {
	for _, g := range n.GIDs {
		if w := l.resolver.Resolve(n, g.GID); w.NIC == n && w.To.IsValid() {
			list = append(list, netAddr{w.Network, ib.GIDOf(w.To)})
		}
	}
	return list
}

// dropAddresses removes all addresses of a NIC.
func (l *adapters) dropAddresses(a *adapter) {
	for p, o := range l.at {
		if o == a {
			delete(l.at, p)
		}
	}
	l.last = nil
}

// readdress makes all loops follow the addresses of a NIC. The first loop holds the others.
func (l *loops) readdress(n *nic.NIC) {
	for _, o := range l.heldLoops() {
		o.adapters.readdress(n)
	}
}

// readdress replaces the addresses of a NIC by those that the Resolver has now.
func (l *adapters) readdress(n *nic.NIC) {
	a := l.of[n]
	if a == nil {
		return
	}
	l.dropAddresses(a)
	for _, p := range l.addresses(n) {
		l.at[p] = a
	}
}

// readdressAll does so for every NIC.
func (l *adapters) readdressAll() {
	clear(l.at)
	l.last = nil
	for n, a := range l.of {
		for _, p := range l.addresses(n) {
			l.at[p] = a
		}
	}
}

// rerouteAll invalidates every route, so that its next use resolves it again.
func (l *adapters) rerouteAll() {
	for n := range l.of {
		n.Reroute()
	}
}

// arrived returns the NIC that has the destination address of a packet; nil: none has.
func (l *adapters) arrived(n ib.NetworkID, gid *ib.GID) *adapter {
	if p := (netAddr{n, *gid}); l.last == nil || l.lastAddr != p {
		l.last, l.lastAddr = l.at[p], p
	}
	return l.last
}

// eachRemote calls f for every queue pair that is connected to another host: those of the first loop, and those of the others
// while it holds them.
func (l *adapters) eachRemote(f func(*task)) {
	for n := range l.of {
		n.EachQP(func(q *nic.QP) {
			if t := taskOf(q); (t.e.number == 0 || len(t.e.loops.holds) > 0) && q.Transport().Path().Remote {
				f(t)
			}
		})
	}
}

// A route is what a task remembers of the way to its peer.
type route struct {
	routes  uint32 // NIC.Routes when it was found; 0: it was not
	sgid    ib.GID
	dgid    ib.GID
	adapter *adapter // of a NIC of this daemon; nil: the address is elsewhere, or unreachable
	// For another host: packets travel between these addresses of a network, by this underlay.
	// under is nil if there is no way.
	from, to netip.Addr
	network  ib.NetworkID
	under    *attached
}

// addr is the address that the route leads to, in a network between hosts.
func (r *route) addr() netAddr {
	if !r.to.IsValid() {
		return netAddr{}
	}
	return netAddr{r.network, ib.GIDOf(r.to)}
}

// find resolves dgid.
func (t *task) find(sgid, dgid *ib.GID) {
	t.route = t.e.adapters.find(t.adapter, sgid, dgid)
}

// find resolves dgid for a NIC.
func (l *adapters) find(a *adapter, sgid, dgid *ib.GID) route {
	r := route{routes: a.nic.Routes(), sgid: *sgid, dgid: *dgid}
	switch w := l.resolver.Resolve(a.nic, *dgid); {
	case w.Local():
		r.adapter = l.of[w.NIC]
	case w.Remote():
		if r.from, r.to, r.network = w.From, w.To, w.Network; !r.from.IsValid() {
			r.from = l.resolver.Resolve(a.nic, *sgid).To
		}
		r.under = l.under.of(r.network)
	}
	return r
}

// stale reports whether the route has to be resolved again for a burst of t. A connected queue
// pair's route is stale when the routes of its NIC have changed. Its path stays as it was,
// because packets in flight would be lost.
func (r *route) stale(t *task, b *transport.Burst) bool {
	return r.routes != t.adapter.nic.Routes() || b.Type == ib.UD && (r.dgid != b.DGID || r.sgid != b.SGID)
}
