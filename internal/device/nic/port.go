package nic

import (
	"slices"

	"vrdma.dev/vrdma/internal/abi"
)

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

// GIDTableLen returns the size of the GID table. As in the kernel, it has empty rows. It has fewer than
// in the kernel, because programs read every row.
func (n *NIC) GIDTableLen() int { return n.Face().TableLen() }

// TableLen returns the size of the GID table.
func (f *Face) TableLen() int {
	if len(f.GIDs) == 0 {
		return leastRows
	}
	return max(leastRows, f.Row(len(f.GIDs)-1)+1)
}

const leastRows = 32

// A Face is what a NIC shows of its port, and what may change.
type Face struct {
	GIDs []GIDEntry
	MTU  uint8
	Down bool // on purpose, see fault.go
	// Rows are where in the GID table each of GIDs is, in rising order; nil: they are the first rows. Programs name a GID by its
	// row, so an address that goes leaves a row empty.
	Rows []int
}

// Row is where in the GID table the i-th of GIDs is.
func (f *Face) Row(i int) int {
	if f.Rows == nil {
		return i
	}
	return f.Rows[i]
}

// Entry is what a row of the GID table has, if it is not empty.
func (f *Face) Entry(row int) (g GIDEntry, full bool) {
	i := row
	if f.Rows != nil {
		i = slices.Index(f.Rows, row)
	}
	if i < 0 || i >= len(f.GIDs) {
		return g, false
	}
	return f.GIDs[i], true
}

// Face is what the NIC shows now. Any goroutine may ask, once for what belongs together: the next answer may be another. The
// loop looks at the fields.
func (n *NIC) Face() *Face { return n.face.Load() }

// SetFace changes the addresses and the MTU of a NIC: those of an interface are known only when the
// interface exists. Every open device gets IBV_EVENT_GID_CHANGE, as from the kernel. It runs on the
// loop.
func (n *NIC) SetFace(f Face) {
	n.GIDs, n.MTU = f.GIDs, f.MTU
	n.face.Store(&f)
	for s := range n.sessions {
		s.async.post(asyncEvent(thePort, abi.EventGIDChange))
	}
}

// SetNetDev says at which interface the addresses of a NIC are; "": at none. It runs on the loop.
func (n *NIC) SetNetDev(name string) {
	f := *n.Face()
	f.GIDs = slices.Clone(f.GIDs)
	for i := range f.GIDs {
		f.GIDs[i].NetDev = name
	}
	n.GIDs = f.GIDs
	n.face.Store(&f)
}

// thePort is the number of the only port.
const thePort = 1

// LargestMTU is that of 4096 bytes, numbered as enum ib_mtu.
const LargestMTU = 5

// roceHeaders is the room that a packet's headers take of an interface's MTU: the
// largest that RoCEv2 has, over IPv6, as rxe reckons.
const roceHeaders = 40 + 8 + 12 + 28 + 4 + 4

// MTUWithin is the largest MTU of the device, numbered as enum ib_mtu, whose packets fit into
// those of an interface with an MTU of so many bytes.
func MTUWithin(bytes int) uint8 {
	n := uint8(1)
	for n < LargestMTU && 256<<n <= bytes-roceHeaders {
		n++
	}
	return n
}
