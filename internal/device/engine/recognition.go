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

// Recognition of other vrdma hosts. Package peers finds out which hosts are vrdma hosts. The paths
// of queue pairs that lead there change accordingly. A host is known by its address on the network,
// which package peers writes as a GID.

// features are those of this engine.
const features = wire.FeatureRepair | wire.FeaturePacedReads | wire.FeatureShortIDs | wire.FeatureFiller | wire.FeatureLongFiller

// ownFeatures are the features that transport.Path.Own implies.
const ownFeatures = wire.FeatureRepair | wire.FeaturePacedReads

// recognition implements peers.Env for one network.
type recognition struct {
	net  *network
	id   ib.NetworkID
	port *roce.Port // nil: a virtual network
}

// virtualPeers are the peer tables of virtual networks with members on hosts that the operator has
// declared. These may be vrdma hosts with a store of their own, which the map does not describe.
type virtualPeers struct {
	of     map[ib.NetworkID]*virtualTable
	due    ib.Time        // earliest deadline; 0: never
	looked bool           // used is filled: one scan of all queue pairs serves all tables
	gone   peers.Counters // of networks that are not on the map any more
}

type virtualTable struct {
	peers   *peers.Table
	used    [][2]ib.GID // pairs of our address and the peer's that have connections
	scanned ib.Time     // see mayGreet
}

// in returns the table of a network; nil: it has none.
func (v *virtualPeers) in(id ib.NetworkID) *peers.Table {
	if k := v.of[id]; k != nil {
		return k.peers
	}
	return nil
}

// keep drops the tables of networks that are not on m, and the peers whose host has changed.
func (v *virtualPeers) keep(old, m *overlay.Map) {
	for n, k := range v.of {
		vni := n.VNI()
		if m.Network(vni) == nil {
			v.gone.Add(k.peers.Counters())
			delete(v.of, n)
			continue
		}
		k.peers.Forget(func(gid ib.GID) bool {
			was, is := old.Find(vni, gid.Addr()), m.Find(vni, gid.Addr())
			return was == nil || is == nil || was.Host.Name != is.Host.Name || was.Host.Linux != is.Host.Linux || was.MAC != is.MAC
		})
	}
}

// note updates the earliest deadline after a call of t.
func (v *virtualPeers) note(t *peers.Table) { v.due = sooner(v.due, t.Deadline()) }

// expire handles what is due.
func (v *virtualPeers) expire(now ib.Time) {
	if v.due == 0 || v.due > now {
		return
	}
	v.due = 0
	for _, k := range v.of {
		expire(k.peers, now)
		v.note(k.peers)
	}
	if v.looked {
		v.looked = false
		for _, k := range v.of {
			k.used = nil
		}
	}
}

// scanUsed fills virtualTable.used.
func (n *network) scanUsed() {
	n.virtual.looked = true
	n.adapters.eachRemote(func(t *task) {
		k := n.virtual.of[t.route.network]
		if k == nil || !reachable(&t.route) || !n.overlay.IsLinux(t.route.network.VNI(), t.route.to) {
			return
		}
		pair := [2]ib.GID{ib.GIDOf(t.route.from), ib.GIDOf(t.route.to)}
		if c := len(k.used); c == 0 || k.used[c-1] != pair {
			k.used = append(k.used, pair)
		}
	})
}

// peersOf returns the table of a virtual network for a member that the map does not describe; nil:
// none is needed, or hosts do not recognise each other.
func (n *network) peersOf(id ib.NetworkID, to netip.Addr) *peers.Table {
	if !n.opts.Recognise || n.overlay == nil || !n.overlay.IsLinux(id.VNI(), to) {
		return nil
	}
	return n.virtualTable(id)
}

// virtualTable returns the table of a virtual network, and makes it if there is none.
func (n *network) virtualTable(id ib.NetworkID) *peers.Table {
	t := n.virtual.in(id)
	if t == nil {
		t = n.newPeers(id, nil)
		if n.virtual.of == nil {
			n.virtual.of = make(map[ib.NetworkID]*virtualTable)
		}
		n.virtual.of[id] = &virtualTable{peers: t}
	}
	return t
}

// greeted takes a hello in a virtual network for a NIC, and reports whether it was one. The NIC is
// charged for it, and the rules of its tenant decide which hosts it answers.
func (n *network) greeted(a *adapter, id ib.NetworkID, b *transport.Burst) bool {
	n.clock.worksFor(a)
	if h := wire.MAD(n.mgmt.in[:]).Hello(); h != nil && h.IsQuestion() && !n.mayGreet(a, id, b.SGID) {
		return true
	}
	others := n.peersOf(id, b.SGID.Addr())
	if others == nil {
		return false
	}
	// The whole packet was seen: its identification says nothing.
	hello := others.Receive(n.clock.now, b.SGID, b.DGID, n.mgmt.in[:], peers.Arrival{})
	n.virtual.note(others)
	return hello
}

// scanEvery is the shortest time between two scans of a NIC's queue pairs for a question: there may
// be many.
const scanEvery = ib.Time(5e6)

// mayGreet reports whether a NIC answers a member of its network: one that the rules admit, or one
// that a queue pair of the NIC leads to (the rules may allow a service only). Others do not learn
// that the NIC exists.
func (n *network) mayGreet(a *adapter, id ib.NetworkID, to ib.GID) bool {
	if a.nic.MayGreet(to) {
		return true
	}
	k := n.virtual.of[id]
	if k == nil || !k.peers.Knows(to) || n.clock.now-k.scanned < scanEvery {
		return false
	}
	k.scanned = n.clock.now
	found, at := false, to.Addr()
	a.nic.EachQP(func(q *nic.QP) {
		if t := taskOf(q); t.e.number == 0 {
			found = found || q.Transport().Path().Remote && t.route.network == id && t.route.to == at
		}
	})
	return found
}

// newPeers makes the table of the hosts behind a port; nil: in a virtual network.
func (n *network) newPeers(id ib.NetworkID, p *roce.Port) *peers.Table {
	c := peers.Config{Version: n.opts.Version, Features: n.opts.features(), Random: random64, Env: recognition{n, id, p}}
	if p != nil {
		c.Ports = func(local ib.GID) []uint16 { return p.Held(local.Addr()) }
	}
	t := peers.New(c)
	if p != nil {
		p.OnStrange(func(a netip.Addr) { t.Strange(n.clock.now, ib.GIDOf(a)) })
		p.OnDoubt(func(a netip.Addr) { t.Doubt(n.clock.now, ib.GIDOf(a)) })
	}
	return t
}

func random64() uint64 {
	var b [8]byte
	rand.Read(b[:]) // never fails: crypto/rand ends the program instead
	return binary.NativeEndian.Uint64(b[:])
}

// path returns what the state machine of t has to know about a route. fresh says that t is about to
// connect; else it continues with what is known about the host.
func (t *task) path(r *route, fresh bool) transport.Path {
	if r.under == nil {
		return transport.Path{}
	}
	return t.pathTo(r, r.under.features(r, fresh))
}

// meet asks a table for the features of the host that a route leads to.
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

// foreignWindow is how many bytes a queue pair may have in flight to a host that is not known to be a
// vrdma host: the size of its buffers is unknown.
const foreignWindow = 512 << 10

// pathTo is the path of t, over a route, to a host with these features.
func (t *task) pathTo(r *route, f uint32) transport.Path {
	own := f&ownFeatures == ownFeatures
	return transport.Path{
		Remote: true, Own: own, Window: t.e.opts.window(own),
		MaxBurst: r.under.maxBurst(128<<t.adapter.nic.MTU, r.to.Is4()),
	}
}

// window is how many bytes a queue pair may have in flight to another host.
func (o *Options) window(own bool) uint32 {
	if own {
		return o.Window
	}
	return min(o.Window, foreignWindow)
}

// features are those that this host announces to others.
func (o *Options) features() uint32 {
	f := uint32(features)
	if o.NoFiller {
		f &^= wire.FeatureFiller | wire.FeatureLongFiller
	}
	return f
}

// SendMAD implements peers.Env.
func (r recognition) SendMAD(from, to ib.GID, mad []byte) {
	if a := r.net.of(r.id); a != nil { // else it is lost
		a.Send(r.id, from.Addr(), to.Addr(), r.net.mgmt.datagram(from, to, mad))
	}
}

// Judged implements peers.Env: it updates the queue pairs that lead to gid.
func (r recognition) Judged(gid ib.GID) {
	at := gid.Addr()
	var f uint32
	switch under := r.underlay().(type) {
	case *portUnderlay:
		if under.peers == nil {
			return
		}
		f = under.judge(gid, under)
		if r.id == ib.HostNetwork {
			r.net.loop.loops.whenHeld(func() { r.judgedShards(gid, under) })
		}
	case *overlayUnderlay:
		others := r.net.virtual.in(r.id)
		if others == nil || !under.IsLinux(r.id.VNI(), at) {
			return // the map describes the host by now
		}
		f = others.Features(gid)
		under.SetFeatures(r.id.VNI(), at, f)
	default:
		return // the underlay is being closed
	}
	r.net.adapters.eachRemote(func(t *task) {
		if t.route.network == r.id && t.route.to == at {
			t.q.Transport().SetPath(t.pathTo(&t.route, f))
		}
	})
}

// judge tells a port what is known about a host, and returns the features to use.
func (p *portUnderlay) judge(gid ib.GID, main *portUnderlay) uint32 {
	at, f := gid.Addr(), main.peers.Features(gid)
	p.SetOwn(at, main.peers.ShortIDs(gid))
	p.SetPorts(at, main.peers.Ports(gid))
	p.setFeatures(at, f)
	return f
}

// judgedShards is Judged for the data loops, which the first loop holds.
func (r recognition) judgedShards(gid ib.GID, main *portUnderlay) {
	at := gid.Addr()
	for _, o := range r.net.loop.loops.others {
		if o.net.host == nil {
			return
		}
		f := o.net.host.underlay.(*portUnderlay).judge(gid, main)
		r.net.adapters.eachRemote(func(t *task) {
			if t.e == o && t.route.network == r.id && t.route.to == at {
				t.q.Transport().SetPath(t.pathTo(&t.route, f))
			}
		})
	}
}

// underlay is that of the network; nil: it is gone.
func (r recognition) underlay() underlay {
	if a := r.net.of(r.id); a != nil {
		return a.underlay
	}
	return nil
}

// InUse implements peers.Env.
func (r recognition) InUse(f func(local, remote ib.GID)) {
	if r.port != nil {
		r.net.adapters.eachRemote(func(t *task) {
			if t.route.network == r.id && reachable(&t.route) {
				f(ib.GIDOf(t.route.from), ib.GIDOf(t.route.to))
			}
		})
		return
	}
	if !r.net.virtual.looked {
		r.net.scanUsed()
	}
	for _, pair := range r.net.virtual.of[r.id].used {
		f(pair[0], pair[1])
	}
}

// peersDue is the earliest deadline of package peers; zero is never.
func (n *network) peersDue() ib.Time {
	due := n.virtual.due
	for _, a := range n.list {
		if p, ok := a.underlay.(*portUnderlay); ok && p.peers != nil {
			due = sooner(due, p.peers.Deadline())
		}
	}
	return due
}

// expireHosts is expirePeers while the first loop holds the others: queue pairs of all loops are looked at.
func (n *network) expireHosts(now ib.Time) {
	if e := n.loop; e.loops.steering.on {
		e.onFirst(func() { n.expirePeers(now) })
		return
	}
	n.expirePeers(now)
}

// expirePeers handles what is due.
func (n *network) expirePeers(now ib.Time) {
	for _, a := range n.list {
		if p, ok := a.underlay.(*portUnderlay); ok {
			expire(p.peers, now)
		}
	}
	n.virtual.expire(now)
}

// hostPeers returns the table of the hosts' own network; nil: hosts do not recognise each other.
func (n *network) hostPeers() *peers.Table {
	if n.host == nil {
		return nil
	}
	return n.host.underlay.(*portUnderlay).peers
}

// expire handles what is due in a table, which may be nil.
func expire(t *peers.Table, now ib.Time) {
	if t == nil {
		return
	}
	if due := t.Deadline(); due != 0 && due <= now {
		t.Expire(now)
	}
}

// Peers returns the known hosts, those in virtual networks among them. It runs on the loop.
func (e *Engine) Peers() (list []peers.Status, count peers.Counters) {
	n := &e.first.net
	if others := n.hostPeers(); others != nil {
		list, count = others.List(), others.Counters()
		for i := range list {
			list[i].TooLong = n.shortestTooLong(list[i].GID.Addr())
		}
	}
	count.Add(n.virtual.gone)
	for id, k := range n.virtual.of {
		count.Add(k.peers.Counters())
		name := n.overlay.Members().Network(id.VNI()).Name
		for _, s := range k.peers.List() {
			s.Network = name
			list = append(list, s)
		}
	}
	return list, count
}
