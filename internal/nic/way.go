package nic

import (
	"net/netip"

	"vrdma/internal/ib"
)

// A Way is how a GID is reached. At most one of NIC and To is set; neither: the GID is
// nowhere, and what is sent there is lost.
type Way struct {
	// NIC is a NIC of this daemon, possibly the sender itself.
	NIC *NIC
	// From and To are addresses of this host and another.
	From, To netip.Addr
}

// A Resolver finds ways; package vnic has it. It is asked on the loop and must not
// allocate.
type Resolver interface {
	Resolve(from *NIC, to ib.GID) Way
}
