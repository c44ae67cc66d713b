package engine

import (
	"net/netip"

	"vrdma.dev/vrdma/internal/device/nic"
	"vrdma.dev/vrdma/internal/device/transport"
	"vrdma.dev/vrdma/internal/ib"
	"vrdma.dev/vrdma/internal/net/roce"
	"vrdma.dev/vrdma/internal/net/wire"
)

// network is the way to other hosts. Bursts whose route leads to one leave through an underlay. A
// burst that arrives goes to the queue pair that it names, of the NIC that has its destination
// address.
//
//	Send ──▶ depart ─┬─ ACKs wait a little (acks.go) ─┬─▶ underlay ──▶ Flush
//	                 └─ the rest ─────────────────────┘
//	deliver ◀── Receive ◀── NIC of the address (adapter.go) ◀── underlay ◀── Poll
//
// It also has: the pattern of the traffic, which decides how the loop waits (traffic.go), limits on
// bytes in flight (flights.go), recognition of other vrdma hosts (recognition.go), multicast groups
// (groups.go), packets over the path MTU (toolong.go).
//
// All NICs share it: for other hosts and for the kernel's sockets there is one sender.
type network struct {
	underlays
	tap     *roce.Tap
	traffic traffic
	drained int // batches taken since a timer of a remote queue pair expired
	acks    acks
	flights flights
	groups  groups
	virtual virtualPeers
	tooLong map[netip.Addr]*tooLong
	strays  uint64 // packets from other hosts for no queue pair of ours
	nowhere uint64 // those among them for no NIC of ours

	opts     *Options
	clock    *clock
	adapters *adapters
	sched    *scheduler
	local    *local
	mgmt     *management
	poller   *poller
	loop     *loop

	reported ib.Time // when this loop last told the first one about another host; 0: never
}

// open attaches the port of the options.
func (n *network) open() error {
	n.fds = make(map[int32]*attached)
	n.groups.init()
	p := n.opts.Port
	if p == nil {
		return nil
	}
	host := &portUnderlay{Port: p, net: n}
	var err error
	if n.host, err = n.attach(host, n.opts.Wake); err != nil {
		return err
	}
	p.OnTooLong(n.noteTooLong)
	if n.opts.Recognise {
		host.peers = n.newPeers(ib.HostNetwork, p)
	}
	return nil
}

// waiting reports whether the loop has something to do here.
func (n *network) waiting() bool { return n.traffic.polled || n.acks.n > 0 || n.groups.ready.Len() > 0 }

// SetTap records every packet, local ones too; nil ends that. It runs on the loop.
func (e *Engine) SetTap(t *roce.Tap) {
	if t != nil {
		for _, c := range e.loops.gather() {
			e.loops.bring(c) // as soon as it can move
		}
	}
	e.loops.steering.dirty = true
	e.first.net.tap = t
	for _, a := range e.first.net.list {
		a.SetTap(t)
	}
}

// LinkCounters returns the counters of the way to other hosts. It runs on the loop.
func (e *Engine) LinkCounters() roce.Counters {
	n := &e.first.net
	c := n.counters()
	c.Strays, c.Nowhere = n.strays, n.nowhere
	for _, o := range e.loops.all {
		c = c.Add(o.net.counters())
		c.Strays += o.net.strays
		c.Nowhere += o.net.nowhere
	}
	c.SendFull += e.first.frames.lost.Load()
	c.SentMulticast, c.RcvdMulticast = n.groups.sent, n.groups.received
	return c
}

// depart sends b to another host. Packets that cannot be sent are lost, as on a wire.
func (n *network) depart(from *task, r *route, b *transport.Burst) {
	switch b.Kind {
	case transport.KindCNP:
		r.under.SendCNP(r.network, r.from, r.to, b.Src, b.Dst)
		return
	case transport.KindAck:
		if b.Syndrome>>5 == 0 {
			n.queueAck(from, r, b)
			return
		}
	}
	if b.Kind != transport.KindWrite {
		n.traffic.tells = n.clock.now
	}
	if b.Kind >= transport.KindReadResp {
		if from.ack != 0 {
			n.acks.flush(n.clock.now) // responses leave in order
		}
	} else if from.ackAt != 0 {
		from.answered(n.clock.now)
	}
	r.under.Send(r.network, r.from, r.to, b)
}

// pollPort takes what has arrived from other hosts.
func (n *network) pollPort() bool {
	n.traffic.dry, n.traffic.flood = false, false
	if !n.traffic.polled {
		return false
	}
	found := n.poll(false)
	n.traffic.looked(found, n.clock.now)
	return found
}

const (
	// drainPerPass is how many batches a pass takes before a timer expires,
	drainPerPass = 8
	// and drainMost how many in all: a flood must not stop the clock.
	drainMost = 1 << 8
)

// drain takes everything that has arrived before a timer of a remote queue pair expires: where the
// loop had to wait for a CPU, the answers have arrived but have not been read. It reports whether
// it is done; if not, the next pass continues.
func (n *network) drain() bool {
	now := n.clock.now
	if !n.any() || n.traffic.isDry(now) || n.traffic.flood {
		return !n.traffic.flood
	}
	for range drainPerPass {
		if !n.poll(true) {
			n.traffic.ranDry(n.clock.now)
			n.drained = 0
			return true
		}
		n.traffic.wake(n.clock.now)
		n.drained++
	}
	if n.drained < drainMost {
		n.traffic.flood = true
		return false
	}
	n.traffic.ranDry(n.clock.now) // enough for this pass
	n.drained = 0
	return true
}

// flushPort sends packets that wait for other hosts, and reports whether some have to wait longer.
func (n *network) flushPort() bool {
	if n.acksDue() {
		n.acks.flush(n.clock.now)
	}
	if !n.pending() {
		return false
	}
	n.flush(n.clock.now)
	n.traffic.wake(n.clock.now)
	return n.pending()
}

var _ roce.Receiver = (*network)(nil)

// Receive implements roce.Receiver. A packet for no queue pair is dropped silently.
func (n *network) Receive(id ib.NetworkID, b *transport.Burst, ce bool) {
	if b.DGID.IsMulticast() {
		n.receiveGroup(id, b)
		return
	}
	if b.Dst == wire.GSIQP {
		if n.loop.number > 0 {
			n.cross(n.loop.loops.first, nil, crossed{network: id, b: *b, ce: ce, arrival: n.arrivalAt(id)})
			return
		}
		n.mgmt.receive(id, b)
		return
	}
	var t *task
	a := n.adapters.arrived(id, &b.DGID)
	if a != nil {
		t = a.taskAt(b.Dst)
	}
	if t == nil {
		n.stray(id, &b.DGID, b.Packets)
		return
	}
	if t.e != n.loop {
		n.clock.worksFor(a)
		n.cross(t.e, t.adapter.nic, crossed{network: id, b: *b, ce: ce})
		return
	}
	if n.sched.nics.Gated() && b.Kind < transport.KindReadResp {
		mark, drop := n.sched.nics.Arrive(&t.adapter.band.nic, n.clock.now)
		if drop {
			t.adapter.part.Drop(nic.DropCap, b.Packets)
			return
		}
		ce = ce || mark
	}
	n.clock.worksFor(t.adapter)
	b.CE = ce
	if b.Type != ib.UD {
		// RoCEv2 packets do not name the sending queue pair. The transport checks the address
		// instead.
		b.Src = t.q.Peer()
	}
	recvs := &t.q.Transport().Counters().RDMARecvs
	before := *recvs
	t.deliver(b)
	if b.Kind != transport.KindAck {
		n.traffic.told = *recvs != before || b.Kind >= transport.KindReadResp
		if b.Kind != transport.KindWrite {
			n.traffic.tells = n.clock.now
		}
	}
	n.local.deliverReplies()
}

// stray counts packets from other hosts for no queue pair of ours.
func (n *network) stray(id ib.NetworkID, to *ib.GID, packets uint32) {
	n.strays += uint64(packets)
	if a := n.adapters.arrived(id, to); a != nil {
		a.part.Drop(nic.DropNoQP, packets)
	} else {
		n.nowhere += uint64(packets)
	}
}

// Congested implements roce.Receiver: a peer reports congestion on packets that qp sent.
func (n *network) Congested(id ib.NetworkID, qp uint32, from, to ib.GID) {
	if to.IsMulticast() {
		return // a CNP for a group is not valid
	}
	var t *task
	if a := n.adapters.arrived(id, &to); a != nil {
		t = a.taskAt(qp)
	}
	if t == nil {
		n.stray(id, &to, 1)
		return
	}
	if t.e != n.loop {
		n.cross(t.e, t.adapter.nic, crossed{network: id, b: transport.Burst{Dst: qp, SGID: from, DGID: to, Packets: 1}, congested: true})
		return
	}
	t.q.Transport().Congested(n.clock.now, from)
	t.changed()
}
