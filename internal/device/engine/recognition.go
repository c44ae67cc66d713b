package engine

import (
	"crypto/rand"
	"encoding/binary"
	"net/netip"

	"vrdma.dev/vrdma/internal/device/nic"
	"vrdma.dev/vrdma/internal/device/transport"
	"vrdma.dev/vrdma/internal/ib"
	"vrdma.dev/vrdma/internal/net/overlay"
	"vrdma.dev/vrdma/internal/net/peers"
	"vrdma.dev/vrdma/internal/net/roce"
	"vrdma.dev/vrdma/internal/net/wire"
)

// This file is what the engine does about other vrdma hosts: package peers finds out who
// is one, and the paths of queue pairs that lead there are told. A host is known by its
// address on the network, which package peers writes as a GID.

// features are those that this engine has.
const features = wire.FeatureRepair | wire.FeaturePacedReads | wire.FeatureShortIDs | wire.FeatureFiller | wire.FeatureLongFiller

// ownFeatures are what transport.Path.Own takes for granted.
const ownFeatures = wire.FeatureRepair | wire.FeaturePacedReads

// recognition implements peers.Env for one network.
type recognition struct {
	e       *Engine
	network ib.NetworkID
	port    *roce.Port // nil: a virtual network
}

// acquaintances are the tables of virtual networks with members on hosts that the operator has declared. These may be vrdma
// hosts with a store of their own, of which the map says nothing.
type acquaintances struct {
	of     map[ib.NetworkID]*acquaintance
	due    ib.Time        // of the earliest; 0: never
	looked bool           // used is filled: one look at all queue pairs serves all tables
	gone   peers.Counters // of networks that are not on the map any more
}

type acquaintance struct {
	peers   *peers.Table
	used    [][2]ib.GID // which address of ours talks with whom
	scanned ib.Time     // see mayGreet
}

// in is the table of a network; nil: it has none.
func (a *acquaintances) in(n ib.NetworkID) *peers.Table {
	if k := a.of[n]; k != nil {
		return k.peers
	}
	return nil
}

// keep leaves the tables of the networks of m, and in them those that are where they were on the map before.
func (a *acquaintances) keep(old, m *overlay.Map) {
	for n, k := range a.of {
		vni := n.VNI()
		if m.Network(vni) == nil {
			a.gone.Add(k.peers.Counters())
			delete(a.of, n)
			continue
		}
		k.peers.Forget(func(gid ib.GID) bool {
			was, is := old.Find(vni, gid.Addr()), m.Find(vni, gid.Addr())
			return was == nil || is == nil || was.Host.Name != is.Host.Name || was.Host.Linux != is.Host.Linux || was.MAC != is.MAC
		})
	}
}

// note has to be called after a table was: it may have something to do sooner.
func (a *acquaintances) note(t *peers.Table) { a.due = sooner(a.due, t.Deadline()) }

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
		k := e.net.met.of[t.route.network]
		if k == nil || !reachable(&t.route) || !e.net.overlay.IsLinux(t.route.network.VNI(), t.route.to) {
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
func (e *Engine) acquainted(id ib.NetworkID, to netip.Addr) *peers.Table {
	n := &e.net
	if !e.opts.Recognise || n.overlay == nil || !n.overlay.IsLinux(id.VNI(), to) {
		return nil
	}
	t := n.met.in(id)
	if t == nil {
		t = e.newPeers(id, nil)
		if n.met.of == nil {
			n.met.of = make(map[ib.NetworkID]*acquaintance)
		}
		n.met.of[id] = &acquaintance{peers: t}
	}
	return t
}

// greeted takes a hello that came in a virtual network for the NIC of c, and reports whether it was one. It is the NIC's tenant
// who pays, and whose rules say who is answered.
func (e *Engine) greeted(c *card, n ib.NetworkID, b *transport.Burst) bool {
	e.worksFor(c)
	if h := wire.MAD(e.mgmt.in[:]).Hello(); h != nil && h.IsQuestion() && !e.mayGreet(c, n, b.SGID) {
		return true
	}
	others := e.acquainted(n, b.SGID.Addr())
	if others == nil {
		return false
	}
	// All of the packet was seen, its identification says nothing.
	hello := others.Receive(e.now, b.SGID, b.DGID, e.mgmt.in[:], false)
	e.net.met.note(others)
	return hello
}

// scanEvery is how often the queue pairs of a NIC are looked through for one question: there may be many.
const scanEvery = ib.Time(5e6)

// mayGreet reports whether the NIC of c answers a member of its network: one that the rules let in, or that one of the NIC's queue
// pairs leads to (the rules may allow a service only). Nobody else learns that the NIC is there.
func (e *Engine) mayGreet(c *card, n ib.NetworkID, to ib.GID) bool {
	if c.nic.MayGreet(to) {
		return true
	}
	k := e.net.met.of[n]
	if k == nil || !k.peers.Knows(to) || e.now-k.scanned < scanEvery {
		return false
	}
	k.scanned = e.now
	found, at := false, to.Addr()
	c.nic.EachQP(func(q *nic.QP) {
		r := &taskOf(q).route
		found = found || q.Transport().Path().Remote && r.network == n && r.to == at
	})
	return found
}

// newPeers makes the table of those that are reached through a port; nil: in a virtual network.
func (e *Engine) newPeers(n ib.NetworkID, p *roce.Port) *peers.Table {
	t := peers.New(peers.Config{Version: e.opts.Version, Features: e.Features(), Random: random64, Env: recognition{e, n, p}})
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

// path is what the state machine of a queue pair has to know of its route. fresh says that the queue
// pair is about to connect; else it goes on with what is known of the host there.
func (e *Engine) path(t *task, r *route, fresh bool) transport.Path {
	if r.under == nil {
		return transport.Path{}
	}
	return e.pathTo(t, r, r.under.features(r, fresh))
}

// meet asks a table what the host that a route leads to understands.
func meet(others *peers.Table, fresh bool, now ib.Time, r *route) uint32 {
	from, to := ib.GIDOf(r.from), ib.GIDOf(r.to)
	if fresh {
		return others.Meet(now, from, to)
	}
	return others.Again(now, from, to)
}

// reachable reports whether r can lead to a host.
func reachable(r *route) bool {
	from, to := r.from, r.to
	return from.IsValid() && from.Is4() == to.Is4() && !from.IsLoopback() && !to.IsLoopback() && !to.IsUnspecified() && !to.IsMulticast()
}

// foreignWindow is how much a queue pair may have on its way to a host that is not known to
// be a vrdma host: nobody knows how much that one can take.
const foreignWindow = 512 << 10

// pathTo is the path of a queue pair, over a route, to a host with these features.
func (e *Engine) pathTo(t *task, r *route, f uint32) transport.Path {
	own := f&ownFeatures == ownFeatures
	return transport.Path{
		Remote: true, Own: own, Window: e.window(own),
		MaxBurst: r.under.maxBurst(128<<t.card.nic.MTU, r.to.Is4()),
	}
}

// window is how much a queue pair may have on its way to another host.
func (e *Engine) window(own bool) uint32 {
	if own {
		return e.opts.Window
	}
	return min(e.opts.Window, foreignWindow)
}

// SendMAD implements peers.Env.
func (r recognition) SendMAD(from, to ib.GID, mad []byte) {
	if a := r.e.net.of(r.network); a != nil { // what cannot be sent is lost
		a.Send(r.network, from.Addr(), to.Addr(), r.e.mgmt.datagram(from, to, mad))
	}
}

// Judged implements peers.Env: the queue pairs that lead to gid are told what is known.
func (r recognition) Judged(gid ib.GID) {
	at := gid.Addr()
	var f uint32
	switch under := r.underlay().(type) {
	case *portUnderlay:
		if under.peers == nil {
			return
		}
		f = under.peers.Features(gid)
		under.SetOwn(at, under.peers.ShortIDs(gid))
		under.setFeatures(at, f)
	case *overlayUnderlay:
		others := r.e.net.met.in(r.network)
		if others == nil || !under.IsLinux(r.network.VNI(), at) {
			return // the map knows better by now
		}
		f = others.Features(gid)
		under.SetFeatures(r.network.VNI(), at, f)
	default:
		return // the underlay is being closed
	}
	r.e.eachRemote(func(t *task) {
		if t.route.network == r.network && t.route.to == at {
			t.q.Transport().SetPath(r.e.pathTo(t, &t.route, f))
		}
	})
}

// underlay is that of the network; nil: it is gone.
func (r recognition) underlay() underlay {
	if a := r.e.net.of(r.network); a != nil {
		return a.underlay
	}
	return nil
}

// InUse implements peers.Env.
func (r recognition) InUse(f func(local, remote ib.GID)) {
	if r.port != nil {
		r.e.eachRemote(func(t *task) {
			if t.route.network == r.network && reachable(&t.route) {
				f(ib.GIDOf(t.route.from), ib.GIDOf(t.route.to))
			}
		})
		return
	}
	if !r.e.net.met.looked {
		r.e.look()
	}
	for _, pair := range r.e.net.met.of[r.network].used {
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

// peersDue is when package peers has something to do; zero is never.
func (n *network) peersDue() ib.Time {
	due := n.met.due
	for _, a := range n.list {
		if p, ok := a.underlay.(*portUnderlay); ok && p.peers != nil {
			due = sooner(due, p.peers.Deadline())
		}
	}
	return due
}

// expirePeers does what is due.
func (n *network) expirePeers(now ib.Time) {
	for _, a := range n.list {
		if p, ok := a.underlay.(*portUnderlay); ok {
			expire(p.peers, now)
		}
	}
	n.met.expire(now)
}

// hostPeers are the hosts that are known in the hosts' own network; nil: hosts do not recognise
// each other.
func (n *network) hostPeers() *peers.Table {
	if n.host == nil {
		return nil
	}
	return n.host.underlay.(*portUnderlay).peers
}

// expire does what is due in a table; nil: nothing is.
func expire(t *peers.Table, now ib.Time) {
	if t == nil {
		return
	}
	if due := t.Deadline(); due != 0 && due <= now {
		t.Expire(now)
	}
}

// Peers are the hosts that are known, those in virtual networks among them. It runs on the loop.
func (e *Engine) Peers() (list []peers.Status, count peers.Counters) {
	n := &e.net
	if others := n.hostPeers(); others != nil {
		list, count = others.List(), others.Counters()
		for i := range list {
			list[i].TooLong = n.shortestTooLong(list[i].GID.Addr())
		}
	}
	count.Add(n.met.gone)
	for id, k := range n.met.of {
		count.Add(k.peers.Counters())
		name := n.overlay.Members().Network(id.VNI()).Name
		for _, s := range k.peers.List() {
			s.Network = name
			list = append(list, s)
		}
	}
	return list, count
}
