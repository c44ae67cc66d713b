package rdmacm

import (
	"net/netip"

	"vrdma.dev/vrdma/internal/abi"
	"vrdma.dev/vrdma/internal/cm"
)

// Status describes one ID for display.
type Status struct {
	Pid       int
	Program   string
	PortSpace string
	State     string
	Src, Dst  netip.AddrPort
	QPN       uint32 // 0: none yet
	RemoteQPN uint32
	Groups    int

	// The same as numbers, for the kernel's tools.
	Serial uint32
	Space  uint16
	QPType uint8
	Stage  State
	Device bool // bound to this device
}

var spaceNames = map[uint16]string{abi.PSTCP: "TCP", abi.PSUDP: "UDP", abi.PSIB: "IB", abi.PSIPoIB: "IPOIB"}

var idStates = map[State]string{
	Idle: "IDLE", Bound: "BOUND", Resolving: "RESOLVING", Resolved: "RESOLVED", Routed: "ROUTED", Listening: "LISTEN",
	Disconnected: "DISCONNECTED",
}

// Status returns the status of every ID of the client.
func (c *Client) Status() []Status {
	var out []Status
	for _, id := range c.ids.items {
		s := Status{
			Pid: c.Pid, Program: c.Program, PortSpace: spaceNames[id.ps], State: idStates[id.state], Src: id.src, Dst: id.dst,
			Groups: len(id.groups), QPN: id.qpn,
			Serial: id.serial, Space: id.ps, QPType: id.qpType, Stage: id.state, Device: id.device,
		}
		if id.state == Connecting && id.conn != nil {
			s.State, s.RemoteQPN = id.conn.State.String(), id.conn.RemoteQPN
			if id.ud() && id.conn.State == cm.Closed {
				s.State = cm.Established.String()
			}
		}
		out = append(out, s)
	}
	return out
}
