package roce

import (
	"net/netip"

	"vrdma.dev/vrdma/internal/device/transport"
	"vrdma.dev/vrdma/internal/ib"
)

// An Underlay carries bursts to and from other hosts. A Port is one for the hosts' own network, or for the network of
// a namespace. An Overlay is one for all virtual networks. An underlay belongs to one loop.
//
//	Send, SendGroup, SendCNP ──▶ queue ──▶ Flush ──▶ sockets
//	Receiver ◀── Poll ◀── sockets
type Underlay interface {
	// Send queues the packets of b, which travel between these addresses of a network. It does not use b and its
	// data after it returns. An error means that the sender's memory could not be read, or that b is malformed.
	// Packets without space in the queue or without a route are dropped and counted.
	Send(n ib.NetworkID, from, to netip.Addr, b *transport.Burst) error
	// SendGroup is Send for a multicast datagram. It returns the number of copies.
	SendGroup(n ib.NetworkID, from, group netip.Addr, b *transport.Burst) int
	// SendCNP queues a congestion notification for queue pair qp of the peer, from queue pair self.
	SendCNP(n ib.NetworkID, from, to netip.Addr, self, qp uint32)
	// Ready reports whether at least half of the queue is free, after a flush if necessary.
	Ready() bool
	// Pending reports whether packets wait for Flush.
	Pending() bool
	// Flush sends queued packets until the sockets are full.
	Flush()
	// Poll receives packets, at most one batch of each kind, and passes them to r. It reports whether it received
	// any.
	Poll(r Receiver) bool
	// Moved returns the number of bytes sent and received.
	Moved() uint64
	// Counters returns the current counters.
	Counters() Counters
	// SetTap starts recording every packet; nil stops it.
	SetTap(t *Tap)
}

var (
	_ Underlay = (*Port)(nil)
	_ Underlay = (*Overlay)(nil)
	_ Underlay = Nowhere{}
)

// A Receiver handles received bursts. The GIDs of a burst come from its packets' IP header. The receiver maps them to a
// NIC of the network.
type Receiver interface {
	// Receive takes a burst that arrived in a network. The burst and its data are valid during the call. ce means that
	// its packets have the Congestion Experienced mark: the receiver answers with a CNP. Src is 0 unless the burst is a
	// datagram, because other packets do not contain it. In a virtual network the underlay has checked that the sending
	// host has SGID, and that DGID is here or a group.
	Receive(n ib.NetworkID, b *transport.Burst, ce bool)
	// Congested handles a CNP from the peer at from, about packets of queue pair qp at to.
	Congested(n ib.NetworkID, qp uint32, from, to ib.GID)
}

// Nowhere is an underlay that drops everything. Routes use it after their own underlay is closed.
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
