package engine

import (
	"fmt"

	"vrdma.dev/vrdma/internal/device/nic"
	"vrdma.dev/vrdma/internal/device/transport"
	"vrdma.dev/vrdma/internal/ib"
	"vrdma.dev/vrdma/internal/net/overlay"
)

// A NIC is suspended while it moves to another host: from its snapshot until its new host serves it, or until the move
// is given up.
//
//	          Halt: snapshot, Suspend                   map: the other host
//	serving ─────────────────────────▶ suspended ─────────────────────────▶ Detach, Remove
//	   ▲                                   │                                    on the other host: Add, Attach
//	   └──────────── Continue ─────────────┘
//
// Its queue pairs have no turns, and its timers stand still. Other queue pairs meet it so:
//
//   - A request of a reliable connection from another host gets an RNR NAK (transport.QP.Postpone). The peer sends it
//     again after 655 ms. That uses no retry, only an RNR retry, of which most programs allow any number (rnr_retry 7).
//   - A connected queue pair of this daemon has no turns either.
//   - Everything else is lost, as on a wire: datagrams, ACKs, messages of the connection manager.
//
// When the move has ended, in either way, nobody waits for a timer. The NIC's queue pairs, and those that are connected to
// them on a host that notices (this one; and others by the new map) send again what is outstanding (transport.QP.Moved).
// Peers elsewhere get another RNR NAK, of the shortest timer (transport.QP.Recall).

// Suspend makes a NIC stand still, until Continue or until it is removed. It runs on the loop, in Halt: after the snapshot
// nothing may change.
func (e *Engine) Suspend(n *nic.NIC) error { return e.loops.suspend(n) }

func (l *loops) suspend(n *nic.NIC) error {
	a := l.first.adapters.of[n]
	if a == nil || a.suspended {
		return fmt.Errorf("engine: the NIC %s cannot be suspended: it is not served, or suspended already", n.Name)
	}
	l.first.onFirst(func() {
		a.suspended = true
		n.SetSuspended(true)
		l.first.adapters.suspended++
		l.gatherNIC(n)
	})
	return nil
}

// Continue makes a suspended NIC continue. It runs on the loop.
func (e *Engine) Continue(n *nic.NIC) { e.loops.proceed(n) }

// proceed is Continue.
func (l *loops) proceed(n *nic.NIC) {
	if a := l.first.adapters.of[n]; a != nil && a.suspended {
		l.first.onFirst(func() { l.first.continueNIC(n, a) })
	}
}

// continueNIC ends the suspension of a NIC. The first loop holds the others: queue pairs of other NICs may be theirs.
func (e *loop) continueNIC(n *nic.NIC, a *adapter) {
	e.adapters.wake(a)
	n.EachQP(func(q *nic.QP) {
		t := taskOf(q)
		if t.moved(); q.Transport().Path().Remote && t.route.under != nil {
			q.Transport().Recall(e.clock.now, q.Env())
		}
	})
	e.local.deliverReplies()
	e.movedTo(a)
	if a.manage != nil {
		e.mgmt.await(a, a.manage.Deadline())
	}
}

// wake ends the suspension of a.
func (l *adapters) wake(a *adapter) {
	if a.suspended {
		a.suspended = false
		a.nic.SetSuspended(false)
		l.suspended--
	}
}

// waitsForMove reports whether t has no turns, because its NIC or that of its peer is suspended.
func (t *task) waitsForMove() bool {
	return t.e.adapters.suspended > 0 && (t.adapter.suspended || t.route.adapter != nil && t.route.adapter.suspended && t.q.Type() != ib.UD)
}

// postpone answers a burst for a queue pair of a suspended NIC.
func (t *task) postpone(b *transport.Burst) {
	if !t.q.Transport().Postpone(t.e.clock.now, b, t.q.Env()) {
		t.adapter.part.Drop(nic.DropStale, b.Packets)
	}
}

// moved continues a connected queue pair after its NIC or that of its peer has moved or was suspended. It finds its
// route and its peer again.
func (t *task) moved() {
	m := t.q.Transport()
	sgid, dgid := m.Addresses()
	if t.q.Gone() || t.q.Type() == ib.UD || t.q.Peer() == 0 && dgid == (ib.GID{}) {
		t.Wake()
		return
	}
	t.peer = nil
	t.find(&sgid, &dgid)
	p := m.Path()
	if r := &t.route; r.adapter != nil || r.under != nil {
		p = t.path(r, false)
		if p.Window == 0 {
			p.Window = m.Path().Window
		}
	} // else there is no way yet: the path stays
	m.Moved(t.e.clock.now, p)
	t.e.loops.regroup(t.q)
	t.Wake()
}

// movedTo continues the queue pairs that are connected to a NIC of this daemon.
func (e *loop) movedTo(a *adapter) {
	e.eachConnected(func(t *task) {
		// Its route may lead to a record of the NIC that was removed.
		if sgid, dgid := t.q.Transport().Addresses(); e.adapters.find(t.adapter, &sgid, &dgid).adapter == a {
			t.moved()
		}
	})
}

// eachConnected calls f for every connected queue pair of NICs that are not suspended.
func (e *loop) eachConnected(f func(*task)) {
	for n, a := range e.adapters.of {
		if a.suspended {
			continue
		}
		n.EachQP(func(q *nic.QP) {
			if q.Type() != ib.UD && q.Peer() != 0 {
				f(taskOf(q))
			}
		})
	}
}

// followMap makes queue pairs continue whose peer's address is on another host by a new map, or came to this host or left
// it. Those that the new map leaves where they are notice nothing.
func (e *loop) followMap(relocated []overlay.Address) {
	if len(relocated) == 0 {
		return
	}
	at := make(map[netAddr]bool, len(relocated))
	for _, p := range relocated {
		at[netAddr{ib.VirtualNetwork(p.VNI), ib.GIDOf(p.Addr)}] = true
	}
	var list []*nic.QP
	e.eachConnected(func(t *task) {
		sgid, dgid := t.q.Transport().Addresses()
		r := e.adapters.find(t.adapter, &sgid, &dgid)
		if here := t.route.adapter; at[r.addr()] || (r.adapter == nil) != (here == nil) || here != nil && here.nic != r.adapter.nic {
			list = append(list, t.q)
		}
	})
	if len(list) > 0 && len(e.loops.others) > 0 {
		e.loops.gather() // only the first loop knows other hosts
	}
	for _, q := range list {
		taskOf(q).moved()
	}
}
