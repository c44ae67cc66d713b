package vswitch

import (
	"net/netip"
	"sync"

	"vrdma.dev/vrdma/internal/ib"
	"vrdma.dev/vrdma/internal/net/wire"
)

// A Guard knows the policy rules for a NIC. Package policy implements it.
type Guard interface {
	Judge(peer ib.GID, c ib.Contact) (ops ib.Operations, known bool)
}

type guarded struct{ Guard }

// SetGuard sets the rules, from the next frame on; nil allows everything.
func (p *Port) SetGuard(g Guard) {
	if g == nil {
		p.guard.Store(nil)
		return
	}
	p.guard.Store(&guarded{g})
}

// Port spaces of rdma_cm, which identify services in rules (IBA annex A11).
const (
	spaceTCP = 0x0106
	spaceUDP = 0x0111
)

// allows reports whether the rules let the device at p send a frame to the NIC that has an address.
//
// Rules name services, and a service is a port: a frame to TCP port 80 belongs to a connection with service tcp:80, which its
// sender requested. If the rules allow it, the switch remembers the flow, and replies pass as long as the rules allow it.
// Frames without ports count as a manual connection ("manual"), and so does RoCE.
func (p *Port) allows(f *frame, peer netip.Addr) bool { return p.judge(f, ib.Us, ib.Them, peer) }

// admits is allows for a frame that a NIC on another host sent to p.
func (p *Port) admits(f *frame, peer netip.Addr) bool { return p.judge(f, ib.Them, ib.Us, peer) }

// judge applies the rules of p. sender and receiver say which side each is from p's point of view.
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
	// A reply never starts a flow in the other direction: a flow that a rule has ended would continue.
	if p.net.flows.has(flow{f.dst, f.src, f.dport, f.sport, f.proto}) {
		return ask(kind, receiver, space<<16|uint64(f.sport))
	}
	if !ask(kind, sender, space<<16|uint64(f.dport)) {
		return false
	}
	p.net.flows.add(flow{f.src, f.dst, f.sport, f.dport, f.proto})
	return true
}

// A flow is the packets of TCP or UDP in one direction, started in that direction.
type flow struct {
	src, dst     netip.Addr
	sport, dport uint16
	proto        uint8
}

// flows are the flows of a network that rules have allowed.
type flows struct {
	mu  sync.RWMutex
	now map[flow]struct{}
}

// mostFlows limits the number of flows. Above it all are forgotten; the next packet of the requesting side adds its flow again.
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
