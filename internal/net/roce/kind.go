package roce

import (
	"vrdma.dev/vrdma/internal/device/transport"
	"vrdma.dev/vrdma/internal/ib"
	"vrdma.dev/vrdma/internal/net/wire"
)

// This file maps packets of bursts to opcodes and back, with one table.

// message lists the opcodes of one kind of message, by position of the packet.
type message struct {
	typ                       ib.Service
	kind                      transport.Kind
	first, middle, last, only wire.Opcode
}

// never stands for a position that a kind does not have.
const never = wire.Opcode(0xff)

// Immediate data and keys to invalidate are only in last packets, so kinds share the other opcodes. For the
// mapping from opcodes, the first row with an opcode counts.
var messages = []message{
	{ib.RC, transport.KindSend, wire.RCSendFirst, wire.RCSendMiddle, wire.RCSendLast, wire.RCSendOnly},
	{ib.RC, transport.KindSendImm, wire.RCSendFirst, wire.RCSendMiddle, wire.RCSendLastImm, wire.RCSendOnlyImm},
	{ib.RC, transport.KindSendInv, wire.RCSendFirst, wire.RCSendMiddle, wire.RCSendLastInv, wire.RCSendOnlyInv},
	{ib.RC, transport.KindWrite, wire.RCWriteFirst, wire.RCWriteMiddle, wire.RCWriteLast, wire.RCWriteOnly},
	{ib.RC, transport.KindWriteImm, wire.RCWriteFirst, wire.RCWriteMiddle, wire.RCWriteLastImm, wire.RCWriteOnlyImm},
	{ib.RC, transport.KindReadReq, never, never, never, wire.RCReadRequest},
	{ib.RC, transport.KindCmpSwap, never, never, never, wire.RCCompareSwap},
	{ib.RC, transport.KindFetchAdd, never, never, never, wire.RCFetchAdd},
	{ib.RC, transport.KindAtomicWrite, never, never, never, wire.RCAtomicWrite},
	{ib.RC, transport.KindFlush, never, never, never, wire.RCFlush},
	{ib.RC, transport.KindReadResp, wire.RCReadRespFirst, wire.RCReadRespMid, wire.RCReadRespLast, wire.RCReadRespOnly},
	{ib.RC, transport.KindAtomicResp, never, never, never, wire.RCAtomicAck},
	{ib.RC, transport.KindAck, never, never, never, wire.RCAck},

	{ib.UC, transport.KindSend, wire.UCSendFirst, wire.UCSendMiddle, wire.UCSendLast, wire.UCSendOnly},
	{ib.UC, transport.KindSendImm, wire.UCSendFirst, wire.UCSendMiddle, wire.UCSendLastImm, wire.UCSendOnlyImm},
	{ib.UC, transport.KindWrite, wire.UCWriteFirst, wire.UCWriteMiddle, wire.UCWriteLast, wire.UCWriteOnly},
	{ib.UC, transport.KindWriteImm, wire.UCWriteFirst, wire.UCWriteMiddle, wire.UCWriteLastImm, wire.UCWriteOnlyImm},

	{ib.UD, transport.KindSend, never, never, never, wire.UDSendOnly},
	{ib.UD, transport.KindSendImm, never, never, never, wire.UDSendOnlyImm},
}

const (
	numTypes = ib.UD + 1
	numKinds = transport.KindAck + 1
)

// meaning is the service, kind and position that an opcode stands for.
type meaning struct {
	typ  ib.Service
	kind transport.Kind
}

var (
	opcodes  [numTypes][numKinds][4]wire.Opcode // by service, kind and position
	meanings [256]meaning                       // by opcode; zero: none
)

func init() {
	for t := range opcodes {
		for k := range opcodes[t] {
			opcodes[t][k] = [4]wire.Opcode{never, never, never, never}
		}
	}
	for _, m := range messages {
		row := [4]wire.Opcode{wire.Middle: m.middle, wire.First: m.first, wire.Last: m.last, wire.Only: m.only}
		opcodes[m.typ][m.kind] = row
		for _, o := range row {
			if o != never && meanings[o].kind == 0 {
				meanings[o] = meaning{m.typ, m.kind}
			}
		}
	}
}

// opcodeOf returns the opcode of a packet, or never if there is none.
func opcodeOf(t ib.Service, k transport.Kind, position wire.Position) wire.Opcode {
	if t >= numTypes || k >= numKinds {
		return never
	}
	return opcodes[t][k][position&wire.Only]
}

// carriesData reports whether packets of a kind contain data of the message.
func carriesData(k transport.Kind) bool {
	switch k {
	case transport.KindSend, transport.KindSendImm, transport.KindSendInv, transport.KindWrite, transport.KindWriteImm,
		transport.KindReadResp:
		return true
	}
	return false
}
