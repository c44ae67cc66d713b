package engine

import (
	"fmt"
	"net/netip"

	"vrdma.dev/vrdma/internal/device/nic"
	"vrdma.dev/vrdma/internal/device/transport"
	"vrdma.dev/vrdma/internal/ib"
)

// A card is a NIC as the loop sees it. An engine serves many: queue pair numbers, handles,
// keys and groups are a NIC's own, so nothing is looked up before it is known of which NIC.
//
//	sender ── NIC, GID ──▶ Resolver ──▶ Way ─┬─ a NIC of this daemon ──▶ card ──▶ QP
//	                                         └─ underlay addresses ──▶ port
//	packet ── destination address ──▶ cards.at ──▶ card ──▶ QP
type card struct {
	nic    *nic.NIC
	manage Management       // nil: nobody takes its management datagrams
	due    timer            // of its Management
	groups map[ib.GID]place // that it is a member of, and what the network calls them
	band   band
	late   queue[*task] // whose acknowledgements wait until it is under its cap
	held   queue[*task] // who waits to send to it, see caps.go
}

// cards are the NICs that are served.
type cards struct {
	of map[*nic.NIC]*card
	at map[place]*card // by the address that packets from other hosts arrive at
	// What was found there last.
	place place
	last  *card
}

// A place is an address in a network between hosts.
type place struct {
	network ib.NetworkID
	gid     ib.GID
}

// Add has the engine serve a NIC, whose management datagrams m takes; nil: nobody does. It
// is called before Start, or on the loop. The Resolver must know the NIC by then. Addresses
// that other hosts reach it at must be those of no other NIC.
func (e *Engine) Add(n *nic.NIC, m Management) error {
	if e.cards.of[n] != nil {
		return fmt.Errorf("engine: the NIC %s is there already", n.Name)
	}
	c := &card{nic: n, manage: m, groups: make(map[ib.GID]place)}
	at := e.addresses(n)
	for _, p := range at {
		if o := e.cards.at[p]; o != nil {
			return fmt.Errorf("engine: the address %v of NIC %s is that of %s: give it another", p.gid.Addr(), n.Name, o.nic.Name)
		}
	}
	for _, p := range at {
		e.cards.at[p] = c
	}
	e.cards.of[n] = c
	e.cards.last = nil
	if m != nil {
		e.mgmt.await(c, m.Deadline())
	}
	e.rank(c)
	return nil
}

// Remove ends that. The NIC has no sessions any more. It is called on the loop.
func (e *Engine) Remove(n *nic.NIC) {
	c := e.cards.of[n]
	if c == nil {
		return
	}
	delete(e.cards.of, n)
	e.unrank(c)
	for p, o := range e.cards.at {
		if o == c {
			delete(e.cards.at, p)
		}
	}
	e.cards.last = nil
	e.mgmt.forget(c)
}

// addresses are where packets from other hosts arrive for a NIC, as they stand in packets.
func (e *Engine) addresses(n *nic.NIC) (list []place) {
	for _, g := range n.GIDs {
		if w := e.opts.Resolver.Resolve(n, g.GID); w.NIC == n && w.To.IsValid() {
			list = append(list, place{w.Network, ib.GIDOf(w.To)})
		}
	}
	return list
}

// readdress finds out again where packets arrive for which NIC, because the Resolver has other
// answers than before.
func (e *Engine) readdress() {
	clear(e.cards.at)
	e.cards.last = nil
	for n, c := range e.cards.of {
		for _, p := range e.addresses(n) {
			e.cards.at[p] = c
		}
	}
}

// arrived is the NIC that packets for an address of ours are for; nil: none.
func (c *cards) arrived(n ib.NetworkID, gid *ib.GID) *card {
	if p := (place{n, *gid}); c.last == nil || c.place != p {
		c.last, c.place = c.at[p], p
	}
	return c.last
}

// A route is what a task remembers of the way to its peer.
type route struct {
	routes uint32 // NIC.Routes when it was found; 0: it was not
	sgid   ib.GID
	dgid   ib.GID
	card   *card // of this daemon; nil: elsewhere, or nowhere
	// Else, between which addresses of which network packets travel, and by which underlay;
	// nil: there is none.
	from, to netip.Addr
	network  ib.NetworkID
	under    *attached
}

// place is where the route leads, in a network between hosts.
func (r *route) place() place {
	if !r.to.IsValid() {
		return place{}
	}
	return place{r.network, ib.GIDOf(r.to)}
}

// find asks where dgid is.
func (t *task) find(sgid, dgid *ib.GID) {
	t.route = t.e.find(t.card, sgid, dgid)
}

func (e *Engine) find(c *card, sgid, dgid *ib.GID) route {
	r := route{routes: c.nic.Routes(), sgid: *sgid, dgid: *dgid}
	switch w := e.opts.Resolver.Resolve(c.nic, *dgid); {
	case w.Local():
		r.card = e.cards.of[w.NIC]
	case w.Remote():
		if r.from, r.to, r.network = w.From, w.To, w.Network; !r.from.IsValid() {
			r.from = e.opts.Resolver.Resolve(c.nic, *sgid).To
		}
		r.under = e.net.of(r.network)
	}
	return r
}

// stale reports whether the route has to be found again for a burst that t sends. That of a
// queue pair that is connected is, when its NIC's routes have changed; its path stays as it
// was, because what is under way would be lost.
func (r *route) stale(t *task, b *transport.Burst) bool {
	return r.routes != t.card.nic.Routes() || b.Type == ib.UD && (r.dgid != b.DGID || r.sgid != b.SGID)
}
