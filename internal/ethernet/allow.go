package ethernet

import (
	"net/netip"

	"vrdma/internal/ib"
	"vrdma/internal/wire"
)

// A Guard knows the rules for a NIC. Package policy's does.
type Guard interface {
	Judge(peer ib.GID, c ib.Contact) (ops ib.Operations, known bool)
}

type guarded struct{ Guard }

// SetGuard makes rules hold from the next frame on; nil: everything is allowed.
func (p *Port) SetGuard(g Guard) {
	if g == nil {
		p.guard.Store(nil)
		return
	}
	p.guard.Store(&guarded{g})
}

// The port spaces of rdma_cm, by which rules name services (IBA annex A11).
const (
	spaceTCP = 0x0106
	spaceUDP = 0x0111
)

// allows reports whether the rules let who is behind p send a frame to the NIC that has an address.
//
// Rules name services, and a service is a port: what goes to TCP port 80 is a connection that we ask for, to
// service tcp:80, and what comes from TCP port 80 is of one that the peer asks for. A packet passes if one of
// the two is allowed. What has no ports is a connection made by hand ("manual"). RoCE itself passes to a NIC to
// which anything is allowed: services and operations are enforced where a daemon has the NIC.
func (p *Port) allows(f *frame, peer netip.Addr) bool {
	return p.judge(f, f.sport, f.dport, peer)
}

// admits is allows for a frame that the NIC with an address on another host sends to p: to the rules it is
// the peer's.
func (p *Port) admits(f *frame, peer netip.Addr) bool { return p.judge(f, f.dport, f.sport, peer) }

func (p *Port) judge(f *frame, sport, dport uint16, peer netip.Addr) bool {
	g := p.guard.Load()
	if g == nil {
		return true
	}
	gid := ib.GIDOf(peer)
	ask := func(t ib.Service, by ib.Asker, id uint64) bool {
		ops, _ := g.Judge(gid, ib.Contact{Type: t, By: by, ID: id})
		return ops != 0
	}
	switch {
	case f.proto == protoTCP && f.payload > 0:
		return ask(ib.RC, ib.Us, spaceTCP<<16|uint64(dport)) || ask(ib.RC, ib.Them, spaceTCP<<16|uint64(sport))
	case f.proto == protoUDP && f.payload > 0 && f.dport != wire.Port:
		return ask(ib.UD, ib.Us, spaceUDP<<16|uint64(dport)) || ask(ib.UD, ib.Them, spaceUDP<<16|uint64(sport))
	}
	return ask(ib.RC, ib.Nobody, 0) || ask(ib.UD, ib.Nobody, 0)
}
