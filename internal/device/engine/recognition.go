package engine

import (
	"crypto/rand"
	"encoding/binary"
	"net/netip"

	"vrdma/internal/hosts"
	"vrdma/internal/ib"
	"vrdma/internal/link"
	"vrdma/internal/nic"
	"vrdma/internal/overlay"
	"vrdma/internal/transport"
	"vrdma/internal/wire"
)

// This file is what the engine does about other vrdma hosts: package hosts finds out who
// is one, and the paths of queue pairs that lead there are told. A host is known by its
// address on the network, which package hosts writes as a GID.

// features are those that this engine has.
const features = wire.FeatureRepair | wire.FeaturePacedReads | wire.FeatureShortIDs | wire.FeatureFiller | wire.FeatureLongFiller

// ownFeatures are what transport.Path.Own takes for granted.
const ownFeatures = wire.FeatureRepair | wire.FeaturePacedReads

// recognition implements hosts.Env, for the hosts' own network, for a site or for a virtual network.
type recognition struct {
	e    *Engine
	vni  uint32
	port *link.Port // nil: a virtual network
}

// acquaintances are the tables of virtual networks with members on hosts that the operator has declared. These may be vrdma
// hosts with a store of their own, of which the map says nothing.
type acquaintances struct {
	of     map[uint32]*acquaintance // by VNI
	due    ib.Time                  // of the earliest; 0: never
	looked bool                     // used is filled: one look at all queue pairs serves all tables
	gone   hosts.Counters           // of networks that are not on the map any more
}

type acquaintance struct {
	peers   *hosts.Table
	used    [][2]ib.GID // which address of ours talks with whom
	scanned ib.Time     // see mayGreet
}

// in is the table of a network; nil: it has none.
func (a *acquaintances) in(vni uint32) *hosts.Table {
	if k := a.of[vni]; k != nil {
		return k.peers
	}
	return nil
}

// keep leaves the tables of the networks of m, and in them those that are where they were on the map before.
func (a *acquaintances) keep(old, m *overlay.Map) {
	for vni, k := range a.of {
		if m.Network(vni) == nil {
			a.gone.Add(k.peers.Counters())
			delete(a.of, vni)
			continue
		}
		k.peers.Forget(func(gid ib.GID) bool {
			was, is := old.Find(vni, gid.Addr()), m.Find(vni, gid.Addr())
			return was == nil || is == nil || was.Host.Name != is.Host.Name || was.Host.Linux != is.Host.Linux || was.MAC != is.MAC
		})
	}
}

// note has to be called after a table was: it may have something to do sooner.
func (a *acquaintances) note(t *hosts.Table) { a.due = sooner(a.due, t.Deadline()) }

// expire does what is due.
func (a *acquaintances) expire(now ib.Time) {
	if a.due == 0 || a.due > now {
		return
	}
	a.due = 0
	for _, k := range a.of {
		expire(k.peers, now)
		a.note(k.peers)
	}
	if a.looked {
		a.looked = false
		for _, k := range a.of {
			k.used = nil
		}
	}
}

// look finds out who talks with whom.
func (e *Engine) look() {
	e.net.met.looked = true
	e.eachRemote(func(t *task) {
		k := e.net.met.of[t.route.vni]
		if k == nil || !reachable(&t.route) || !e.net.over.IsLinux(t.route.vni, t.route.to) {
			return
		}
		pair := [2]ib.GID{ib.GIDOf(t.route.from), ib.GIDOf(t.route.to)}
		if n := len(k.used); n == 0 || k.used[n-1] != pair {
			k.used = append(k.used, pair)
		}
	})
}

// acquainted is the table of a virtual network, for a member that the map says nothing of; nil: there is no need for one, or
// hosts do not recognise each other.
func (e *Engine) acquainted(vni uint32, to netip.Addr) *hosts.Table {
	n := &e.net
	if !e.opts.Recognise || n.over == nil || !n.over.IsLinux(vni, to) {
		return nil
	}
	t := n.met.in(vni)
	if t == nil {
		t = e.newPeers(vni, nil)
		if n.met.of == nil {
			n.met.of = make(map[uint32]*acquaintance)
		}
		n.met.of[vni] = &acquaintance{peers: t}
	}
	return t
}

// greeted takes a hello that came in a virtual network for the NIC of c, and reports whether it was one. It is the NIC's tenant
// who pays, and whose rules say who is answered.
func (e *Engine) greeted(c *card, vni uint32, b *transport.Burst) bool {
	e.worksFor(c)
	if h := wire.MAD(e.mgmt.in[:]).Hello(); h != nil && h.IsQuestion() && !e.mayGreet(c, vni, b.SGID) {
		return true
	}
	peers := e.acquainted(vni, b.SGID.Addr())
	if peers == nil {
		return false
	}
	// All of the packet was seen, its identification says nothing.
	hello := peers.Receive(e.now, b.SGID, b.DGID, e.mgmt.in[:], false)
	e.net.met.note(peers)
	return hello
}

// scanEvery is how often the queue pairs of a NIC are looked through for one question: there may be many.
const scanEvery = ib.Time(5e6)

// mayGreet reports whether the NIC of c answers a member of its network: one that the rules let in, or that one of the NIC's queue
// pairs leads to (the rules may allow a service only). Nobody else learns that the NIC is there.
func (e *Engine) mayGreet(c *card, vni uint32, to ib.GID) bool {
	if c.nic.MayGreet(to) {
		return true
	}
	k := e.net.met.of[vni]
	if k == nil || !k.peers.Knows(to) || e.now-k.scanned < scanEvery {
		return false
	}
	k.scanned = e.now
	found, at := false, to.Addr()
	c.nic.EachQP(func(q *nic.QP) {
		r := &taskOf(q).route
		found = found || q.Transport().Path().Remote && r.vni == vni && r.to == at
	})
	return found
}

// recognise makes the table of other hosts.
func (e *Engine) recognise(version string) {
	e.opts.Version = version
	e.net.peers = e.newPeers(0, e.net.port)
}

// newPeers makes the table of those that are reached through a port; nil: in a virtual network.
func (e *Engine) newPeers(vni uint32, p *link.Port) *hosts.Table {
	t := hosts.New(hosts.Config{Version: e.opts.Version, Features: e.Features(), Random: random64, Env: recognition{e, vni, p}})
	if p != nil {
		p.OnDoubt(func(a netip.Addr) { t.Doubt(e.now, ib.GIDOf(a)) })
	}
	return t
}

func random64() uint64 {
	var b [8]byte
	rand.Read(b[:]) // never fails: crypto/rand ends the program instead
	return binary.NativeEndian.Uint64(b[:])
}

// path is what the state machine of a queue pair has to know of its route. Without fresh it has one and goes on with what is
// known of the host there.
func (e *Engine) path(t *task, r *route, fresh bool) transport.Path {
	n := &e.net
	meet := (*hosts.Table).Again
	if fresh {
		meet = (*hosts.Table).Meet
	}
	if !n.lead(r) {
		return transport.Path{}
	}
	if r.vni != 0 && !isSite(r.vni) {
		// Who is a vrdma host of the same store, and what it understands, the map knows.
		f := n.over.Features(r.vni, r.to)
		if peers := e.acquainted(r.vni, r.to); peers != nil && reachable(r) {
			f = meet(peers, e.now, ib.GIDOf(r.from), ib.GIDOf(r.to))
			n.met.note(peers)
			n.over.SetFeatures(r.vni, r.to, f)
		}
		return e.pathOn(t, r, f)
	}
	p := e.pathTo(0)
	if peers := n.peersOf(r.vni); peers != nil && reachable(r) {
		f := meet(peers, e.now, ib.GIDOf(r.from), ib.GIDOf(r.to))
		// Filler is for an address, not for a queue pair: if it is no longer certain who
		// is there, nobody sends it until it is. Judged tells.
		n.portOf(r.vni).SetFiller(r.to, f&wire.FeatureFiller != 0)
		n.portOf(r.vni).SetLongFiller(r.to, f&wire.FeatureLongFiller != 0)
		p = e.pathTo(f)
	}
	return p
}

// pathOn is the way of a queue pair, over a route, to a host with these features.
func (e *Engine) pathOn(t *task, r *route, f uint32) transport.Path {
	p := e.pathTo(f)
	if r.vni != 0 && !isSite(r.vni) {
		p.MaxBurst = overlayBurst(128<<t.card.nic.MTU, r.to.Is4())
	}
	return p
}

// reachable reports whether r can lead to a host.
func reachable(r *route) bool {
	from, to := r.from, r.to
	return from.IsValid() && from.Is4() == to.Is4() && !from.IsLoopback() && !to.IsLoopback() && !to.IsUnspecified() && !to.IsMulticast()
}

// foreignWindow is how much a queue pair may have on its way to a host that is not known to
// be a vrdma host: nobody knows how much that one can take.
const foreignWindow = 512 << 10

// pathTo is the way to another host with these features.
func (e *Engine) pathTo(f uint32) transport.Path {
	p := transport.Path{Remote: true, Own: f&ownFeatures == ownFeatures, MaxBurst: remoteBurst, Window: e.opts.Window}
	if !p.Own {
		p.Window = min(p.Window, foreignWindow)
	}
	return p
}

// SendMAD implements hosts.Env.
func (r recognition) SendMAD(from, to ib.GID, mad []byte) {
	r.e.net.send(r.vni, from.Addr(), to.Addr(), r.e.mgmt.datagram(from, to, mad)) // what cannot be sent is lost
}

// Judged implements hosts.Env: the queue pairs that lead to gid are told what is known.
func (r recognition) Judged(gid ib.GID) {
	peers, at := r.e.net.peersOf(r.vni), gid.Addr()
	if peers == nil {
		return // the site is being closed, or the network has gone
	}
	f := peers.Features(gid)
	if r.port != nil {
		r.port.SetOwn(at, peers.ShortIDs(gid))
		r.port.SetFiller(at, f&wire.FeatureFiller != 0)
		r.port.SetLongFiller(at, f&wire.FeatureLongFiller != 0)
	} else if r.e.net.over.IsLinux(r.vni, at) {
		r.e.net.over.SetFeatures(r.vni, at, f)
	} else {
		return // the map knows better by now
	}
	r.e.eachRemote(func(t *task) {
		if t.route.vni == r.vni && t.route.to == at {
			t.q.Transport().SetPath(r.e.pathOn(t, &t.route, f))
		}
	})
}

// InUse implements hosts.Env.
func (r recognition) InUse(f func(local, remote ib.GID)) {
	if r.port != nil {
		r.e.eachRemote(func(t *task) {
			if t.route.vni == r.vni && reachable(&t.route) {
				f(ib.GIDOf(t.route.from), ib.GIDOf(t.route.to))
			}
		})
		return
	}
	if !r.e.net.met.looked {
		r.e.look()
	}
	for _, pair := range r.e.net.met.of[r.vni].used {
		f(pair[0], pair[1])
	}
}

// eachRemote calls f for every queue pair that is connected to another host.
func (e *Engine) eachRemote(f func(*task)) {
	for n := range e.cards.of {
		n.EachQP(func(q *nic.QP) {
			if q.Transport().Path().Remote {
				f(taskOf(q))
			}
		})
	}
}

// peersDue is when package hosts has something to do; zero is never.
func (n *network) peersDue() ib.Time {
	var due ib.Time
	if n.peers != nil {
		due = n.peers.Deadline()
	}
	for _, s := range n.sites.list {
		if s.peers != nil {
			due = sooner(due, s.peers.Deadline())
		}
	}
	return sooner(due, n.met.due)
}

// expirePeers does what is due.
func (n *network) expirePeers(now ib.Time) {
	expire(n.peers, now)
	for _, s := range n.sites.list {
		expire(s.peers, now)
	}
	n.met.expire(now)
}

// expire does what is due in a table; nil: nothing is.
func expire(t *hosts.Table, now ib.Time) {
	if t == nil {
		return
	}
	if due := t.Deadline(); due != 0 && due <= now {
		t.Expire(now)
	}
}

// Peers are the hosts that are known, those in virtual networks among them. It runs on the loop.
func (e *Engine) Peers() (list []hosts.Status, count hosts.Counters) {
	n := &e.net
	if n.peers != nil {
		list, count = n.peers.List(), n.peers.Counters()
		for i := range list {
			list[i].TooLong = n.shortestTooLong(list[i].GID.Addr())
		}
	}
	count.Add(n.met.gone)
	for vni, k := range n.met.of {
		count.Add(k.peers.Counters())
		name := n.over.Members().Network(vni).Name
		for _, s := range k.peers.List() {
			s.Network = name
			list = append(list, s)
		}
	}
	return list, count
}
