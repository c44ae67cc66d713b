package engine

import (
	"crypto/rand"
	"encoding/binary"
	"net/netip"

	"vrdma/internal/hosts"
	"vrdma/internal/ib"
	"vrdma/internal/link"
	"vrdma/internal/nic"
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

// recognition implements hosts.Env, for the hosts' own network or for a site.
type recognition struct {
	e    *Engine
	vni  uint32
	port *link.Port
}

// recognise makes the table of other hosts.
func (e *Engine) recognise(version string) {
	e.opts.Version = version
	e.net.peers = e.newPeers(0, e.net.port)
}

// newPeers makes the table of those that are reached through a port.
func (e *Engine) newPeers(vni uint32, p *link.Port) *hosts.Table {
	t := hosts.New(hosts.Config{Version: e.opts.Version, Features: e.Features(), Random: random64, Env: recognition{e, vni, p}})
	p.OnDoubt(func(a netip.Addr) { t.Doubt(e.now, ib.GIDOf(a)) })
	return t
}

func random64() uint64 {
	var b [8]byte
	rand.Read(b[:]) // never fails: crypto/rand ends the program instead
	return binary.NativeEndian.Uint64(b[:])
}

// path is what the state machine of a queue pair has to know of its route.
func (e *Engine) path(t *task, r *route) transport.Path {
	n := &e.net
	if !n.lead(r) {
		return transport.Path{}
	}
	if r.vni != 0 && !isSite(r.vni) {
		// Who is a vrdma host, and what it understands, the map knows.
		p := e.pathTo(n.over.Features(r.vni, r.to))
		p.MaxBurst = overlayBurst(128<<t.card.nic.MTU, r.to.Is4())
		return p
	}
	p := e.pathTo(0)
	if peers := n.peersOf(r.vni); peers != nil && reachable(r) {
		f := peers.Meet(e.now, ib.GIDOf(r.from), ib.GIDOf(r.to))
		// Filler is for an address, not for a queue pair: if it is no longer certain who
		// is there, nobody sends it until it is. Judged tells.
		n.portOf(r.vni).SetFiller(r.to, f&wire.FeatureFiller != 0)
		n.portOf(r.vni).SetLongFiller(r.to, f&wire.FeatureLongFiller != 0)
		p = e.pathTo(f)
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
	b := r.e.mgmt.datagram(from, to, mad)
	r.port.Send(from.Addr(), to.Addr(), b) // what cannot be sent is lost
}

// Judged implements hosts.Env: the queue pairs that lead to gid are told what is known.
func (r recognition) Judged(gid ib.GID) {
	peers, at := r.e.net.peersOf(r.vni), gid.Addr()
	if peers == nil {
		return // the site is being closed
	}
	f := peers.Features(gid)
	r.port.SetOwn(at, peers.ShortIDs(gid))
	r.port.SetFiller(at, f&wire.FeatureFiller != 0)
	r.port.SetLongFiller(at, f&wire.FeatureLongFiller != 0)
	p := r.e.pathTo(f)
	r.e.eachRemote(func(t *task) {
		if t.route.vni == r.vni && t.route.to == at {
			t.q.Transport().SetPath(p)
		}
	})
}

// InUse implements hosts.Env.
func (r recognition) InUse(f func(local, remote ib.GID)) {
	r.e.eachRemote(func(t *task) {
		if t.route.vni == r.vni && reachable(&t.route) {
			f(ib.GIDOf(t.route.from), ib.GIDOf(t.route.to))
		}
	})
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
	return due
}

// expirePeers does what is due.
func (n *network) expirePeers(now ib.Time) {
	if n.peers != nil {
		n.peers.Expire(now)
	}
	for _, s := range n.sites.list {
		if s.peers != nil {
			s.peers.Expire(now)
		}
	}
}

// Peers are the hosts that are known; nil if hosts do not recognise each other. It runs on
// the loop.
func (e *Engine) Peers() ([]hosts.Status, hosts.Counters) {
	n := &e.net
	if n.peers == nil {
		return nil, hosts.Counters{}
	}
	list := n.peers.List()
	for i := range list {
		list[i].TooLong = n.shortestTooLong(list[i].GID.Addr())
	}
	return list, n.peers.Counters()
}
