package engine

import (
	"vrdma.dev/vrdma/internal/device/nic"
	"vrdma.dev/vrdma/internal/ib"
)

// flatNetwork is a Resolver: a GID is an IP address, and every NIC reaches every other.
type flatNetwork struct{ at map[ib.GID]*nic.NIC }

// Add makes a NIC's addresses known.
func (f *flatNetwork) Add(n *nic.NIC) {
	if f.at == nil {
		f.at = make(map[ib.GID]*nic.NIC)
	}
	for _, g := range n.GIDs {
		f.at[g.GID] = n
	}
}

// Resolve implements nic.Resolver.
func (f *flatNetwork) Resolve(_ *nic.NIC, to ib.GID) nic.Way {
	return nic.Way{NIC: f.at[to], To: to.Addr()}
}
