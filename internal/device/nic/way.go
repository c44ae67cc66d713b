package nic

import (
	"net/netip"

	"vrdma.dev/vrdma/internal/ib"
)

// A Way says where an address is, for one NIC. The zero Way leads nowhere: what is sent
// there is lost, as on a wire.
type Way struct {
	// NIC has the address, and is of this daemon; nil: the address is elsewhere.
	NIC *NIC
	// To is where the underlay has it: the IP address that packets go to. That of a NIC of
	// this daemon is where packets from other hosts arrive for it.
	To netip.Addr
	// From is the IP address that packets to other hosts leave from, where it is always
	// the same. Not valid: the one that the sender's own address has, which is the To of
	// its Way.
	From netip.Addr
	// Network is the network that From and To are addresses of.
	Network ib.NetworkID
}

// Local reports whether the way leads to a NIC of this daemon.
func (w *Way) Local() bool { return w.NIC != nil }

// Remote reports whether it leads to another host.
func (w *Way) Remote() bool { return w.NIC == nil && w.To.IsValid() }

// A Resolver finds the Way to a GID. Only a Resolver does that, because a GID can lead elsewhere, or
// nowhere, from another NIC. The loop calls it. Its answer is cached until NIC.Reroute.
type Resolver interface {
	Resolve(from *NIC, to ib.GID) Way
}

// Reroute invalidates the cached answers of the Resolver for the NIC. It runs on the loop.
func (n *NIC) Reroute() { n.routes = max(n.routes+1, 1) }

// Routes changes with Reroute: what was remembered under another number is stale. It is not
// 0.
func (n *NIC) Routes() uint32 { return n.routes }
