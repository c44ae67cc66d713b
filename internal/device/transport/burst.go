package transport

import (
	"vrdma.dev/vrdma/internal/device/memory"
	"vrdma.dev/vrdma/internal/ib"
)

// Kind is the type of a burst's packets.
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
	KindAck // ACK, NAK and RNR NAK, distinguished by Syndrome
	// neither
	KindCNP // congestion notification packet: tells Dst that its packets had an ECN mark
)

// Burst is the unit that passes between transport and link: a run of consecutive packets of one
// message of one queue pair. A link to another host splits it at the path MTU; the local link
// passes it on whole. A link that receives packets may pass them on one by one, or combine
// consecutive packets of one message.
//
// The eight bytes of an atomic write are in Swap, not in Data. The type and selectivity of a flush
// are in Imm. The response to both is an empty KindReadResp, as on the wire.
type Burst struct {
	Type       ib.Service
	Kind       Kind
	First      bool // begins with the message's first packet
	Last       bool // ends with the message's last packet
	AckReq     bool // on the last packet of the burst
	Solicited  bool
	Migrated   bool
	CE         bool   // Congestion Experienced (ECN), only in received bursts
	Damaged    bool   // its packets have a wrong ICRC, on purpose
	Src, Dst   uint32 // queue pair numbers
	SGID, DGID ib.GID
	PKey       uint16
	MTU        uint32
	PSN        uint32 // PSN of the first packet
	Packets    uint32 // a READ request is one packet, though it takes the PSNs of its response
	// RETH / AtomicETH, valid in First bursts of writes, reads, atomics, flushes
	VA            uint64
	RKey          uint32
	Length        uint32 // length of the whole message
	Compare, Swap uint64 // Swap is also the operand of fetch-and-add
	Imm           uint32 // valid in Last bursts of *Imm and *Inv
	QKey          uint32 // UD
	// AETH / AtomicAckETH, valid in responses
	Syndrome uint8
	MSN      uint32
	Orig     uint64
	// A burst does not contain its offset in the message: the receiver computes it and trusts no
	// offset of the sender.
	Data *memory.Span // payload; may be nil
}

// size returns the number of payload bytes.
func (b *Burst) size() uint32 {
	if b.Data == nil {
		return 0
	}
	return uint32(b.Data.Len())
}

// psns returns the number of PSNs that a request takes.
func (b *Burst) psns(mtu uint32) uint32 {
	if b.Kind == KindReadReq {
		return packetsOf(b.Length, mtu)
	}
	return b.Packets
}

// wellFormed reports whether n payload bytes match b's packet count at this MTU.
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

// base maps every kind of SEND to KindSend, every kind of WRITE to KindWrite, and other kinds to zero.
func (k Kind) base() Kind {
	switch k {
	case KindSend, KindSendImm, KindSendInv:
		return KindSend
	case KindWrite, KindWriteImm:
		return KindWrite
	}
	return 0
}
