package transport

import "vrdma.dev/vrdma/internal/ib"

// operation is what the NIC and the requester have to know of a work request's operation.
type operation struct {
	services uint8 // set of 1 << Type: the services that have it
	kind     Kind  // the burst that carries it; zero for local operations
	inline   bool  // its data may stand in the work request itself
	rd       bool  // occupies a responder resource, completed by a response of its own
	local    bool  // never leaves the NIC
}

const (
	onRC        = 1 << ib.RC
	onConnected = 1<<ib.RC | 1<<ib.UC
	onAll       = 1<<ib.RC | 1<<ib.UC | 1<<ib.UD
)

// operations is the one table of them, as rxe has it (IBA 10.8.2 names more: UC has no
// opcode for SEND with invalidate, and rxe invalidates for RC alone).
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

// row is the operation's row of the table, or one that no service has.
func (o WROp) row() *operation {
	if int(o) >= len(operations) {
		return &unknown
	}
	return &operations[o]
}

var unknown operation

// Valid reports whether a queue pair of type t has the operation.
func (o WROp) Valid(t ib.Service) bool { return o.row().services&(1<<t) != 0 }

// Inline reports whether the operation's data may stand in the work request.
func (o WROp) Inline() bool { return o.row().inline }

// isLocal tells requests that never leave the NIC.
func (o WROp) isLocal() bool { return o.row().local }

// isRD tells requests that occupy a responder resource and are completed by a
// response of their own.
func (o WROp) isRD() bool { return o.row().rd }

// sendKind is the kind of burst that carries an operation.
func sendKind(o WROp) Kind { return o.row().kind }
