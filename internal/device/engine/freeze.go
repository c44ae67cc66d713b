package engine

import (
	"fmt"
	"slices"

	"vrdma.dev/vrdma/internal/device/nic"
	"vrdma.dev/vrdma/internal/device/transport"
	"vrdma.dev/vrdma/internal/ib"
	"vrdma.dev/vrdma/internal/net/peers"
	"vrdma.dev/vrdma/internal/net/roce"
)

// An EngineState is what an engine knows beside its NICs and sessions, in the format of package state.
//
// Flights and timers follow from queue pairs. Levels of token buckets are not kept: the next engine begins with full
// buckets, so a cap may be exceeded by one burst. What the path MTU refused is found out again.
type EngineState struct {
	Loop    *nic.LoopState `cbor:"1,keyasint,omitempty"`
	Peers   []PeersState   `cbor:"2,keyasint,omitempty"`
	Gone    peers.Counters `cbor:"3,keyasint,omitzero"` // of virtual networks that are not on the map any more
	Link    roce.Counters  `cbor:"4,keyasint,omitzero"`
	Bulk    WaitsState     `cbor:"5,keyasint,omitzero"` // of NICs that were removed
	Latency WaitsState     `cbor:"6,keyasint,omitzero"`
}

// PeersState is the table of the hosts in a network.
type PeersState struct {
	Network ib.NetworkID      `cbor:"1,keyasint,omitempty"`
	Table   *peers.TableState `cbor:"2,keyasint,omitempty"`
}

// WaitsState is a nic.Waits.
type WaitsState struct {
	Delays []uint64 `cbor:"1,keyasint,omitempty"`
	Sum    ib.Time  `cbor:"2,keyasint,omitempty"`
}

// Freeze returns the state of the engine. It changes nothing, and runs on the loop.
func (e *Engine) Freeze() *EngineState {
	now, removed := e.first.clock.now, e.first.removedWaits()
	st := &EngineState{
		Loop: e.first.shared.Freeze(now), Gone: e.first.net.virtual.gone, Link: e.LinkCounters(),
		Bulk: freezeWaits(&removed.bulk), Latency: freezeWaits(&removed.latency),
	}
	e.first.net.eachTable(func(id ib.NetworkID, t *peers.Table) {
		st.Peers = append(st.Peers, PeersState{id, t.Freeze(now)})
	})
	return st
}

func freezeWaits(w *nic.Waits) WaitsState {
	return WaitsState{Delays: slices.Clone(w.Delays[:]), Sum: w.Sum}
}

func (st *WaitsState) thaw(w *nic.Waits) {
	copy(w.Delays[:], st.Delays)
	w.Sum = st.Sum
}

// eachTable calls f for the table of every network.
func (n *network) eachTable(f func(ib.NetworkID, *peers.Table)) {
	if t := n.hostPeers(); t != nil {
		f(ib.HostNetwork, t)
	}
	for id, a := range n.namespaces {
		if p, ok := a.underlay.(*portUnderlay); ok && p.peers != nil {
			f(id, p.peers)
		}
	}
	for id, k := range n.virtual.of {
		f(id, k.peers)
	}
}

// table returns the table of a network; nil: the network is not there.
func (n *network) table(id ib.NetworkID) *peers.Table {
	if id.IsVirtual() {
		if n.overlay == nil || !n.opts.Recognise || n.overlay.Members().Network(id.VNI()) == nil {
			return nil
		}
		return n.virtualTable(id)
	}
	if a := n.of(id); a != nil {
		return a.underlay.(*portUnderlay).peers
	}
	return nil
}

// Thaw makes a new engine continue with the state of another. Its ports, overlay, map and namespaces are there already;
// what the state says about other networks is dropped. Its sessions are not attached yet. It runs on the loop.
func (e *Engine) Thaw(st *EngineState) error {
	now := e.first.clock.now
	if st.Loop != nil {
		e.first.shared.Thaw(st.Loop, now)
		e.first.stall.reviewAside()
	}
	for i := range st.Peers {
		p := &st.Peers[i]
		t := e.first.net.table(p.Network)
		if t == nil || p.Table == nil {
			continue
		}
		if err := t.Thaw(p.Table, now); err != nil {
			return fmt.Errorf("network %v: %w", p.Network, err)
		}
		if p.Network.IsVirtual() {
			e.first.net.virtual.note(t)
		}
	}
	n := &e.first.net
	n.virtual.gone.Add(st.Gone)
	n.strays, n.nowhere, n.groups.sent, n.groups.received = st.Link.Strays, st.Link.Nowhere, st.Link.SentMulticast, st.Link.RcvdMulticast
	link := st.Link
	link.Strays, link.Nowhere, link.SentMulticast, link.RcvdMulticast = 0, 0, 0, 0
	n.gone = n.gone.Add(link)
	st.Bulk.thaw(&e.first.sched.waited.bulk)
	st.Latency.thaw(&e.first.sched.waited.latency)
	return nil
}

// resume continues a queue pair of a session that was restored: it finds its route and its peer again, and has a turn,
// because a doorbell may have rung while no loop looked.
func (t *task) resume() {
	m := t.q.Transport()
	if sgid, dgid := m.Addresses(); t.q.Peer() != 0 || dgid != (ib.GID{}) {
		t.find(&sgid, &dgid)
		switch r := &t.route; {
		case r.adapter != nil:
			t.setPath(t.path(r, false))
			if p := r.adapter.taskAt(t.q.Peer()); p != nil && p.e == t.e {
				t.meets(p)
				if p.q.Peer() == t.q.Num() && p.peer == nil && p.route.adapter == t.adapter {
					p.meets(t)
				}
			}
		case r.under != nil:
			t.setPath(t.path(r, false))
		} // else there is no way yet: the path stays
	}
	t.Wake()
}

// setPath sets the path, unless it is the same: the state machine continues as it was.
func (t *task) setPath(p transport.Path) {
	m := t.q.Transport()
	was := m.Path()
	if p.Window == 0 {
		p.Window = was.Window // the default
	}
	if p != was {
		m.SetPath(p)
	}
}

// meets notes the peer of a connected queue pair that continues.
func (t *task) meets(p *task) {
	t.peer = p
	if t.q.Transport().WaitsForReceiver() {
		t.e.local.starved.add(t)
	}
}
