package engine

import (
	"vrdma/internal/link"
	"vrdma/internal/nic"
	"vrdma/internal/transport"
	"vrdma/internal/wire"
)

// This file is the way to other hosts: bursts for addresses that are not ours leave
// through a link.Port, and what arrives there is handed to the queue pair it names.

// remoteBurst is what fits one message of the kernel's: 64 datagrams and 65507 bytes,
// headers included.
const remoteBurst = 62 << 10

// SetTap has every packet recorded, local ones too; nil ends that. It runs on the
// loop.
func (e *Engine) SetTap(t *link.Tap) {
	e.tap = t
	if e.port != nil {
		e.port.SetTap(t)
	}
}

// LinkCounters are those of the way to other hosts. It runs on the loop.
func (e *Engine) LinkCounters() link.Counters {
	if e.port == nil {
		return link.Counters{}
	}
	c := e.port.Counters()
	c.Strays = e.strays
	c.SentMulticast, c.RcvdMulticast = e.toGroups.sent, e.toGroups.received
	return c
}

// depart sends b to another host. What cannot be sent is lost, as on a wire.
func (e *Engine) depart(from *nic.QP, b *transport.Burst) {
	switch b.Kind {
	case transport.KindCNP:
		e.port.SendCNP(b.SGID, b.DGID, b.Src, b.Dst)
		return
	case transport.KindAck:
		if b.Syndrome>>5 == 0 {
			e.owe(from, b)
			return
		}
	}
	if b.Kind >= transport.KindReadResp {
		if from.Sched.Ack != 0 {
			e.pay() // responses leave in order
		}
	} else if from.Sched.AckAt != 0 {
		e.answered(from)
	}
	e.port.Send(b)
}

// remote reports whether b is for another host.
func (e *Engine) remote(from *nic.QP, b *transport.Burst) bool {
	if nic.IsMulticast(&b.DGID) {
		return false
	}
	if b.Type == transport.UD {
		return !e.nic.Local(&b.DGID)
	}
	r := &from.Sched.Route
	if *r == nic.RouteUnknown {
		*r = nic.RouteRemote
		if e.nic.Local(&b.DGID) {
			*r = nic.RouteLocal
		}
	}
	return *r == nic.RouteRemote
}

// pollPort takes what has arrived from other hosts and sends what waits for them.
func (e *Engine) pollPort() bool {
	e.traffic.dry, e.traffic.flood = false, false
	if !e.traffic.polled {
		return false
	}
	found := e.port.Poll(e)
	e.traffic.looked(found, e.now)
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
	if e.port == nil || e.traffic.dry || e.traffic.flood {
		return !e.traffic.flood
	}
	for range hearPerPass {
		if !e.port.Poll(e) {
			e.traffic.dry, e.heard = true, 0
			return true
		}
		e.traffic.wake(e.now)
		e.heard++
	}
	if e.heard < hearMost {
		e.traffic.flood = true
		return false
	}
	e.traffic.dry, e.heard = true, 0 // that will do for this pass
	return true
}

// flushPort sends what waits for other hosts, and reports whether some has to wait
// longer.
func (e *Engine) flushPort() bool {
	if e.acksDue() {
		e.pay()
	}
	if !e.port.Pending() {
		return false
	}
	e.port.Flush()
	e.traffic.wake(e.now)
	return e.port.Pending()
}

// Receive implements link.Receiver. A packet for no queue pair is dropped in silence.
func (e *Engine) Receive(b *transport.Burst, ce bool) {
	if b.Dst == wire.GSIQP {
		e.receiveMAD(b)
		return
	}
	q := e.nic.QP(b.Dst)
	if q == nil {
		e.strays += uint64(b.Packets)
		return
	}
	e.current = q
	b.CE = ce
	if b.Type != transport.UD {
		// The wire does not say who sent it: the address, which the transport
		// checks, has to do.
		b.Src = q.Peer()
	}
	recvs := &q.Transport().Counters().RDMARecvs
	before := *recvs
	e.receive(q, b)
	if b.Kind != transport.KindAck {
		e.traffic.told = *recvs != before || b.Kind >= transport.KindReadResp
	}
	e.deliver()
}

// Congested implements link.Receiver: a peer has seen congestion on what qp sent it.
func (e *Engine) Congested(qp uint32, from transport.GID) {
	q := e.nic.QP(qp)
	if q == nil {
		e.strays++
		return
	}
	q.Transport().Congested(e.now, from)
	e.settle(q)
}
