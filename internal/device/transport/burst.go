package transport

import (
	"vrdma.dev/vrdma/internal/device/memory"
	"vrdma.dev/vrdma/internal/ib"
)

// Kind says what a burst's packets are.
type Kind uint8

const (
	KindSend Kind = iota + 1
	KindSendImm
	KindSendInv
	KindWrite
	KindWriteImm
	KindReadReq
	KindCmpSwap
	KindFetchAdd
	KindAtomicWrite
	KindFlush
	// responses
	KindReadResp
	KindAtomicResp
	KindAck // ACK, NAK and RNR NAK: Syndrome tells
	// neither
	KindCNP // congestion notification: tells Dst that its packets were marked
)

// Burst is what passes between transport and link: one queue pair's run of
// consecutive packets of one message. A link that has to put it on a wire cuts it
// at the path MTU; the local link hands it over whole. A link that receives packets
// may hand them over one by one, or together what is consecutive and of one message.
//
// An atomic write carries its eight bytes in Swap, not in Data; a flush its type and
// selectivity in Imm. The response to both is an empty KindReadResp, as on the wire.
type Burst struct {
	Type       ib.Service
	Kind       Kind
	First      bool // starts with the message's first packet
	Last       bool // ends with the message's last packet
	AckReq     bool // on the last packet of the burst
	Solicited  bool
	Migrated   bool
	CE         bool   // the mark Congestion Experienced, in bursts that arrived
	Src, Dst   uint32 // queue pair numbers
	SGID, DGID ib.GID
	PKey       uint16
	MTU        uint32
	PSN        uint32 // of the first packet
	Packets    uint32 // a READ request is one, though it takes the PSNs of its response
	// RETH / AtomicETH, valid in First bursts of writes, reads, atomics, flushes
	VA            uint64
	RKey          uint32
	Length        uint32 // of the whole message
	Compare, Swap uint64 // Swap is the operand of fetch-and-add too
	Imm           uint32 // valid in Last bursts of *Imm and *Inv
	QKey          uint32 // UD
	// AETH / AtomicAckETH, valid in responses
	Syndrome uint8
	MSN      uint32
	Orig     uint64
	// Offset of the burst's first byte in the message is the sender's business
	// and never trusted by the receiver: it counts for itself.
	Data *memory.Span // payload; nil or empty when there is none
}

// size is the number of payload bytes.
func (b *Burst) size() uint32 {
	if b.Data == nil {
		return 0
	}
	return uint32(b.Data.Len())
}

// psns is how many sequence numbers a request takes.
func (b *Burst) psns(mtu uint32) uint32 {
	if b.Kind == KindReadReq {
		return packetsOf(b.Length, mtu)
	}
	return b.Packets
}

// wellFormed checks that n bytes are what b's packets carry at this MTU.
func (b *Burst) wellFormed(n, mtu uint32) bool {
	if uint64(b.Packets)*uint64(mtu) > MaxMessage+uint64(mtu) {
		return false
	}
	full := b.Packets * mtu
	if !b.Last {
		return n == full
	}
	if b.Packets == 1 && n == 0 {
		return b.First
	}
	return n <= full && n > full-mtu
}

// base reduces a kind of SEND or WRITE to KindSend or KindWrite, others to zero.
func (k Kind) base() Kind {
	switch k {
	case KindSend, KindSendImm, KindSendInv:
		return KindSend
	case KindWrite, KindWriteImm:
		return KindWrite
	}
	return 0
}
