package vswitch

import (
	"net/netip"
	"sync"

	"vrdma.dev/vrdma/internal/ib"
	"vrdma.dev/vrdma/internal/net/wire"
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
// Rules name services, and a service is a port: what goes to TCP port 80 is of a connection with service tcp:80,
// which its sender has asked for. If the rules let it, the flow is remembered, and what comes back passes as long as they
// do. What has no ports is a connection made by hand ("manual"), and so is RoCE.
func (p *Port) allows(f *frame, peer netip.Addr) bool { return p.judge(f, ib.Us, ib.Them, peer) }

// admits is allows for a frame that a NIC on another host has sent to p.
func (p *Port) admits(f *frame, peer netip.Addr) bool { return p.judge(f, ib.Them, ib.Us, peer) }

// judge asks the rules for p. sender and receiver are who that is to them.
func (p *Port) judge(f *frame, sender, receiver ib.Asker, peer netip.Addr) bool {
	g := p.guard.Load()
	if g == nil {
		return true
	}
	gid := ib.GIDOf(peer)
	ask := func(t ib.Service, by ib.Asker, id uint64) bool {
		ops, _ := g.Judge(gid, ib.Contact{Type: t, By: by, ID: id})
		return ops != 0
	}
	kind, space := ib.RC, uint64(spaceTCP)
	switch {
	case f.payload > 0 && f.proto == protoTCP:
	case f.payload > 0 && f.proto == protoUDP && f.dport != wire.Port:
		kind, space = ib.UD, spaceUDP
	default:
		return ask(ib.RC, ib.Nobody, 0) || ask(ib.UD, ib.Nobody, 0)
	}
	// An answer is one, and never the beginning of a flow the other way: what a rule has ended would go on.
	if p.net.flows.has(flow{f.dst, f.src, f.dport, f.sport, f.proto}) {
		return ask(kind, receiver, space<<16|uint64(f.sport))
	}
	if !ask(kind, sender, space<<16|uint64(f.dport)) {
		return false
	}
	p.net.flows.add(flow{f.src, f.dst, f.sport, f.dport, f.proto})
	return true
}

// A flow is packets of TCP or UDP one way, of whom the first was sent that way.
type flow struct {
	src, dst     netip.Addr
	sport, dport uint16
	proto        uint8
}

// flows are those of a network that rules have let pass.
type flows struct {
	mu  sync.RWMutex
	now map[flow]struct{}
}

// mostFlows bounds them. When there are more all are forgotten: the next packet of who asked has a flow remembered
// again.
const mostFlows = 1 << 16

func (t *flows) has(f flow) bool {
	t.mu.RLock()
	defer t.mu.RUnlock()
	_, ok := t.now[f]
	return ok
}

func (t *flows) add(f flow) {
	if t.has(f) {
		return
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if len(t.now) >= mostFlows || t.now == nil {
		t.now = make(map[flow]struct{})
	}
	t.now[f] = struct{}{}
}
