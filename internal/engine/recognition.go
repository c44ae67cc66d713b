package engine

import (
	"crypto/rand"
	"encoding/binary"
	"net/netip"

	"vrdma/internal/hosts"
	"vrdma/internal/link"
	"vrdma/internal/nic"
	"vrdma/internal/transport"
	"vrdma/internal/wire"
)

// This file is what the engine does about other vrdma hosts: package hosts finds out who
// is one, and the paths of queue pairs that lead there are told.

// features are those that this engine has.
const features = wire.FeatureRepair | wire.FeaturePacedReads | wire.FeatureShortIDs | wire.FeatureFiller

// ownFeatures are what transport.Path.Own takes for granted.
const ownFeatures = wire.FeatureRepair | wire.FeaturePacedReads

// recognition implements hosts.Host.
type recognition struct{ e *Engine }

// recognise makes the table of other hosts.
func (e *Engine) recognise(version string) {
	f := uint32(features)
	if e.opts.NoFiller {
		f &^= wire.FeatureFiller
	}
	e.peers = hosts.New(hosts.Config{Version: version, Features: f, Random: random64, Host: recognition{e}})
	e.port.OnDoubt(func(a netip.Addr) { e.peers.Doubt(e.now, link.GIDOf(a)) })
}

func random64() uint64 {
	var b [8]byte
	rand.Read(b[:]) // never fails: crypto/rand ends the program instead
	return binary.NativeEndian.Uint64(b[:])
}

// Path implements nic.Link.
func (e *Engine) Path(sgid, dgid *transport.GID) transport.Path {
	if e.port == nil || e.nic.Local(dgid) {
		return transport.Path{}
	}
	p := e.pathTo(0)
	if e.peers != nil && e.reachable(sgid, dgid) {
		f := e.peers.Meet(e.now, *sgid, *dgid)
		// Filler is for an address, not for a queue pair: if it is no longer certain who
		// is there, nobody sends it until it is. Judged tells.
		e.port.SetFiller(link.AddrOf(*dgid), f&wire.FeatureFiller != 0)
		p = e.pathTo(f)
	}
	return p
}

// reachable reports whether dgid can be a host that sgid talks with.
func (e *Engine) reachable(sgid, dgid *transport.GID) bool {
	from, to := link.AddrOf(*sgid), link.AddrOf(*dgid)
	return from.Is4() == to.Is4() && !from.IsLoopback() && !to.IsLoopback() && !to.IsUnspecified() && !to.IsMulticast()
}

// pathTo is the way to another host with these features.
func (e *Engine) pathTo(f uint32) transport.Path {
	return transport.Path{Remote: true, Own: f&ownFeatures == ownFeatures, MaxBurst: remoteBurst, Window: e.opts.Window}
}

// SendMAD implements hosts.Host.
func (r recognition) SendMAD(from, to transport.GID, mad []byte) { r.e.SendMAD(from, to, mad) }

// Judged implements hosts.Host: the queue pairs that lead to gid are told what is known.
func (r recognition) Judged(gid transport.GID) {
	e := r.e
	f := e.peers.Features(gid)
	e.port.SetOwn(link.AddrOf(gid), e.peers.ShortIDs(gid))
	e.port.SetFiller(link.AddrOf(gid), f&wire.FeatureFiller != 0)
	p := e.pathTo(f)
	e.nic.EachQP(func(q *nic.QP) {
		if t := q.Transport(); q.PeerGID() == gid && t.Path().Remote {
			t.SetPath(p)
		}
	})
}

// InUse implements hosts.Host.
func (r recognition) InUse(f func(local, remote transport.GID)) {
	e := r.e
	e.nic.EachQP(func(q *nic.QP) {
		if !q.Transport().Path().Remote {
			return
		}
		if local, remote := q.LocalGID(), q.PeerGID(); e.reachable(&local, &remote) {
			f(local, remote)
		}
	})
}

// Peers are the hosts that are known; nil if hosts do not recognise each other. It runs on
// the loop.
func (e *Engine) Peers() ([]hosts.Status, hosts.Counters) {
	if e.peers == nil {
		return nil, hosts.Counters{}
	}
	list := e.peers.List()
	for i := range list {
		list[i].TooLong = e.shortestTooLong(list[i].GID)
	}
	return list, e.peers.Counters()
}
