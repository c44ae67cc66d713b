package transport

import "vrdma.dev/vrdma/internal/ib"

// operation describes the operation of a work request to the NIC and the requester.
type operation struct {
	services uint8 // bit set of 1 << Type: the services that support it
	kind     Kind  // kind of its bursts; zero for local operations
	inline   bool  // allows inline data
	rd       bool  // uses a responder resource; its own response completes it
	local    bool  // sends nothing
}

const (
	onRC        = 1 << ib.RC
	onConnected = 1<<ib.RC | 1<<ib.UC
	onAll       = 1<<ib.RC | 1<<ib.UC | 1<<ib.UD
)

// operations is the table of all operations, as in rxe. IBA 10.8.2 has more: UC has no opcode for SEND with
// invalidate, and rxe supports invalidate only on RC.
var operations = [...]operation{
	WRWrite:       {services: onConnected, kind: KindWrite, inline: true},
	WRWriteImm:    {services: onConnected, kind: KindWriteImm, inline: true},
	WRSend:        {services: onAll, kind: KindSend, inline: true},
	WRSendImm:     {services: onAll, kind: KindSendImm, inline: true},
	WRSendInv:     {services: onRC, kind: KindSendInv, inline: true},
	WRRead:        {services: onRC, kind: KindReadReq, rd: true},
	WRCmpSwap:     {services: onRC, kind: KindCmpSwap, rd: true},
	WRFetchAdd:    {services: onRC, kind: KindFetchAdd, rd: true},
	WRAtomicWrite: {services: onRC, kind: KindAtomicWrite, rd: true, inline: true},
	WRFlush:       {services: onRC, kind: KindFlush, rd: true},
	WRBindMW:      {services: onConnected, local: true},
	WRLocalInv:    {services: onRC, local: true},
}

// row returns the operation's row of the table, or a row without services.
func (o WROp) row() *operation {
	if int(o) >= len(operations) {
		return &unknown
	}
	return &operations[o]
}

var unknown operation

// Valid reports whether queue pairs of type t support the operation.
func (o WROp) Valid(t ib.Service) bool { return o.row().services&(1<<t) != 0 }

// Inline reports whether the operation allows inline data.
func (o WROp) Inline() bool { return o.row().inline }

// isLocal reports whether the operation sends nothing.
func (o WROp) isLocal() bool { return o.row().local }

// isRD reports whether the operation uses a responder resource. Its own response completes it.
func (o WROp) isRD() bool { return o.row().rd }

// sendKind returns the kind of the operation's bursts.
func sendKind(o WROp) Kind { return o.row().kind }
