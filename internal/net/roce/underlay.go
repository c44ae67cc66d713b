package roce

import (
	"net/netip"

	"vrdma.dev/vrdma/internal/device/transport"
	"vrdma.dev/vrdma/internal/ib"
)

// An Underlay carries bursts to and from other hosts. A Port is one, for the hosts' own network
// or for that of a network namespace; an Overlay is one for all virtual networks. An underlay
// belongs to one loop.
//
//	Send, SendGroup, SendCNP ──▶ queue ──▶ Flush ──▶ sockets
//	Receiver ◀── Poll ◀── sockets
type Underlay interface {
	// Send queues b's packets, which travel between these addresses of a network. It is done
	// with b and its data when it returns. An error means that the sender's memory could not
	// be read, or that b is not well-formed. Packets that cannot be sent for want of room or
	// of a route are lost, as on a wire, and counted.
	Send(n ib.NetworkID, from, to netip.Addr, b *transport.Burst) error
	// SendGroup is Send for a datagram to a multicast group. It returns how many copies it
	// made.
	SendGroup(n ib.NetworkID, from, group netip.Addr, b *transport.Burst) int
	// SendCNP queues a congestion notification for queue pair qp of the peer, from queue
	// pair self.
	SendCNP(n ib.NetworkID, from, to netip.Addr, self, qp uint32)
	// Ready reports whether at least half of the queue is free, after a flush if need be.
	Ready() bool
	// Pending reports whether packets wait for a flush.
	Pending() bool
	// Flush sends what is queued, as far as the sockets take it.
	Flush()
	// Poll receives what has arrived, one batch at most of each kind, and hands it to r. It
	// reports whether there was anything.
	Poll(r Receiver) bool
	// Moved is how many bytes have been sent and received.
	Moved() uint64
	// Counters are what has been counted so far.
	Counters() Counters
	// SetTap records every packet; nil ends that.
	SetTap(t *Tap)
}

var (
	_ Underlay = (*Port)(nil)
	_ Underlay = (*Overlay)(nil)
	_ Underlay = Nowhere{}
)

// A Receiver takes what arrives. The GIDs of a burst are what stands in its packets' IP
// header. The receiver knows which NIC of the network has them.
type Receiver interface {
	// Receive takes a burst that arrived in a network. The burst and its data are valid
	// during the call. ce says that its packets bear the mark Congestion Experienced: the
	// receiver answers with a CNP. Src is 0 unless the burst is a datagram, because the wire
	// does not say it. In a virtual network the underlay has checked that the sending host
	// has SGID, and that DGID is here or a group.
	Receive(n ib.NetworkID, b *transport.Burst, ce bool)
	// Congested: the peer at from has seen congestion on packets from queue pair qp at to.
	Congested(n ib.NetworkID, qp uint32, from, to ib.GID)
}

// Nowhere is an underlay that loses everything: the underlay of routes whose own is closed.
type Nowhere struct{}

func (Nowhere) Send(ib.NetworkID, netip.Addr, netip.Addr, *transport.Burst) error    { return nil }
func (Nowhere) SendGroup(ib.NetworkID, netip.Addr, netip.Addr, *transport.Burst) int { return 0 }
func (Nowhere) SendCNP(_ ib.NetworkID, _, _ netip.Addr, _, _ uint32)                 {}
func (Nowhere) Ready() bool                                                          { return true }
func (Nowhere) Pending() bool                                                        { return false }
func (Nowhere) Flush()                                                               {}
func (Nowhere) Poll(Receiver) bool                                                   { return false }
func (Nowhere) Moved() uint64                                                        { return 0 }
func (Nowhere) Counters() Counters                                                   { return Counters{} }
func (Nowhere) SetTap(*Tap)                                                          {}
