package nic

import "vrdma/internal/abi"

// What the device says about its one port, to every place that shows it: QUERY_PORT, the
// device tree, netlink.
const (
	// PKeys is the size of the P_Key table; its one entry is the default key.
	PKeys = 1
	// GIDType is the type of every GID.
	GIDType = "RoCE v2"
	// The rate that the port claims: what one core copies between two processes,
	// rounded to a rate that exists. Libraries weigh devices by it.
	PortWidth = abi.Width4X
	PortSpeed = abi.SpeedEDR
)

// GIDTableLen is the size of the GID table: as in the kernel, larger than what is in
// it; programs read every row, so not as large as there.
func (n *NIC) GIDTableLen() int { return max(32, len(n.GIDs)) }
