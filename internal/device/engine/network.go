package engine

import (
	"net/netip"

	"vrdma.dev/vrdma/internal/device/nic"
	"vrdma.dev/vrdma/internal/device/transport"
	"vrdma.dev/vrdma/internal/ib"
	"vrdma.dev/vrdma/internal/net/roce"
	"vrdma.dev/vrdma/internal/net/wire"
)

// The network is the way to other hosts: bursts whose route leads to one leave through a
// roce.Port, and what arrives there is handed to the queue pair that it names, of the NIC
// that has the address it was sent to.
//
//	Send ──▶ depart ─┬─ acknowledgements wait a little (acks.go) ─┬─▶ port ──▶ Flush
//	                 └─ the rest ─────────────────────────────────┘
//	deliver ◀── Receive ◀── NIC of the address (card.go) ◀── port ◀── Poll
//
// Beside that: how the traffic looks, which decides how the loop waits (traffic.go), how much
// may be under way (flights.go), who of the other hosts is a vrdma host (recognition.go),
// multicast groups (groups.go), packets that are too long (toolong.go).
//
// All NICs share the port and everything here: other hosts and the kernel's sockets know only
// one sender.
type network struct {
	underlays
	tap     *roce.Tap
	traffic traffic
	heard   int // batches taken since a timer of a remote queue pair came due
	acks    acks
	flights flights
	groups  groups
	met     acquaintances
	tooLong map[netip.Addr]*tooLong
	strays  uint64 // packets from other hosts for no queue pair of ours
	nowhere uint64 // those among them that were for no NIC of ours
}

// openNetwork makes the port of the options the loop's.
func (e *Engine) openNetwork() error {
	n := &e.net
	n.fds = make(map[int32]*attached)
	n.groups.init()
	p := e.opts.Port
	if p == nil {
		return nil
	}
	host := &portUnderlay{Port: p, e: e}
	var err error
	if n.host, err = e.attach(host, e.opts.Wake); err != nil {
		return err
	}
	p.OnTooLong(e.noteTooLong)
	if e.opts.Recognise {
		host.peers = e.newPeers(ib.HostNetwork, p)
	}
	return nil
}

// waiting reports whether the loop has something to do here.
func (n *network) waiting() bool { return n.traffic.polled || n.acks.n > 0 || n.groups.ready.n > 0 }

// SetTap records every packet, local ones too; nil ends that. It runs on the loop.
func (e *Engine) SetTap(t *roce.Tap) {
	e.net.tap = t
	for _, a := range e.net.list {
		a.SetTap(t)
	}
}

// LinkCounters are those of the way to other hosts. It runs on the loop.
func (e *Engine) LinkCounters() roce.Counters {
	c := e.net.counters()
	c.SendFull += e.frames.lost.Load()
	c.Strays, c.Nowhere = e.net.strays, e.net.nowhere
	c.SentMulticast, c.RcvdMulticast = e.net.groups.sent, e.net.groups.received
	return c
}

// depart sends b to another host. What cannot be sent is lost, as on a wire.
func (e *Engine) depart(from *task, r *route, b *transport.Burst) {
	switch b.Kind {
	case transport.KindCNP:
		r.under.SendCNP(r.network, r.from, r.to, b.Src, b.Dst)
		return
	case transport.KindAck:
		if b.Syndrome>>5 == 0 {
			e.owe(from, r, b)
			return
		}
	}
	if b.Kind != transport.KindWrite {
		e.net.traffic.tells = e.now
	}
	if b.Kind >= transport.KindReadResp {
		if from.ack != 0 {
			e.pay() // responses leave in order
		}
	} else if from.ackAt != 0 {
		e.answered(from)
	}
	r.under.Send(r.network, r.from, r.to, b)
}

// pollPort takes what has arrived from other hosts and sends what waits for them.
func (e *Engine) pollPort() bool {
	e.net.traffic.dry, e.net.traffic.flood = false, false
	if !e.net.traffic.polled {
		return false
	}
	found := e.poll(false)
	e.net.traffic.looked(found, e.now)
	return found
}

const (
	// hearPerPass is how many batches are taken in a pass before a timer expires,
	hearPerPass = 8
	// and hearMost how many in all: a flood must not stop the clock.
	hearMost = 1 << 8
)

// hear takes everything that has arrived, before anybody is held to have been silent: where
// the loop had to wait for a processor, the answers are there but have not been read. It
// reports whether that is done; if not, the next pass goes on.
func (e *Engine) hear() bool {
	if !e.net.any() || e.net.traffic.isDry(e.now) || e.net.traffic.flood {
		return !e.net.traffic.flood
	}
	for range hearPerPass {
		if !e.poll(true) {
			e.net.traffic.ranDry(e.now)
			e.net.heard = 0
			return true
		}
		e.net.traffic.wake(e.now)
		e.net.heard++
	}
	if e.net.heard < hearMost {
		e.net.traffic.flood = true
		return false
	}
	e.net.traffic.ranDry(e.now) // that will do for this pass
	e.net.heard = 0
	return true
}

// flushPort sends what waits for other hosts, and reports whether some has to wait
// longer.
func (e *Engine) flushPort() bool {
	if e.acksDue() {
		e.pay()
	}
	if !e.net.pending() {
		return false
	}
	e.net.flush(e.now)
	e.net.traffic.wake(e.now)
	return e.net.pending()
}

var _ roce.Receiver = (*Engine)(nil)

// Receive implements roce.Receiver. A packet for no queue pair is dropped in silence.
func (e *Engine) Receive(n ib.NetworkID, b *transport.Burst, ce bool) {
	if b.DGID.IsMulticast() {
		e.receiveGroup(n, b)
		return
	}
	if b.Dst == wire.GSIQP {
		e.receiveMAD(n, b)
		return
	}
	var t *task
	if c := e.cards.arrived(n, &b.DGID); c != nil {
		t = c.taskAt(b.Dst)
	}
	if t == nil {
		e.stray(n, &b.DGID, b.Packets)
		return
	}
	if e.sched.nics.Gated() && b.Kind < transport.KindReadResp {
		mark, drop := e.sched.nics.Arrive(&t.card.band.nic, e.now)
		if drop {
			t.card.nic.Drop(nic.DropCap, b.Packets)
			return
		}
		ce = ce || mark
	}
	e.worksFor(t.card)
	b.CE = ce
	if b.Type != ib.UD {
		// The wire does not say who sent it: the address, which the transport
		// checks, has to do.
		b.Src = t.q.Peer()
	}
	recvs := &t.q.Transport().Counters().RDMARecvs
	before := *recvs
	e.deliver(t, b)
	if b.Kind != transport.KindAck {
		e.net.traffic.told = *recvs != before || b.Kind >= transport.KindReadResp
		if b.Kind != transport.KindWrite {
			e.net.traffic.tells = e.now
		}
	}
	e.deliverReplies()
}

// stray counts packets from other hosts for no queue pair of ours.
func (e *Engine) stray(n ib.NetworkID, to *ib.GID, packets uint32) {
	e.net.strays += uint64(packets)
	if c := e.cards.arrived(n, to); c != nil {
		c.nic.Drop(nic.DropNoQP, packets)
	} else {
		e.net.nowhere += uint64(packets)
	}
}

// Congested implements roce.Receiver: a peer has seen congestion on what qp sent it.
func (e *Engine) Congested(n ib.NetworkID, qp uint32, from, to ib.GID) {
	if to.IsMulticast() {
		return // nobody tells a group of congestion
	}
	var t *task
	if c := e.cards.arrived(n, &to); c != nil {
		t = c.taskAt(qp)
	}
	if t == nil {
		e.stray(n, &to, 1)
		return
	}
	t.q.Transport().Congested(e.now, from)
	e.changed(t)
}
