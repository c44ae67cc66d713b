package wire

import "encoding/binary"

// BTH is the base transport header, the first of every packet (IBA 9.2).
type BTH []byte

// BTHSize is the length of a BTH.
const BTHSize = 12

const (
	bthOpcode = 0
	bthFlags  = 1 // solicited event, migrated, pad count, version
	bthPKey   = 2
	bthECN    = 4 // FECN, BECN, six reserved bits; not covered by the ICRC
	bthDestQP = 5
	bthAckReq = 8 // acknowledge request, seven reserved bits
	bthPSN    = 9

	bthSolicited  = 0x80
	bthMigrated   = 0x40
	bthPadShift   = 4
	bthPadMask    = 0x30
	bthVersion    = 0x0f
	bthFECN       = 0x80
	bthBECN       = 0x40
	bthAckReqFlag = 0x80
	bthFillerMask = 0x7f
)

// IsValid reports whether b can be read and has the only version there is.
func (b BTH) IsValid() bool { return len(b) >= BTHSize && b[bthFlags]&bthVersion == 0 }

// Opcode says what the packet is and which headers follow.
func (b BTH) Opcode() Opcode { return Opcode(b[bthOpcode]) }

// SetOpcode sets the opcode.
func (b BTH) SetOpcode(o Opcode) { b[bthOpcode] = byte(o) }

// Solicited asks the receiver for a solicited completion event.
func (b BTH) Solicited() bool { return b[bthFlags]&bthSolicited != 0 }

// SetSolicited sets the solicited event bit.
func (b BTH) SetSolicited(v bool) { b.setFlag(bthFlags, bthSolicited, v) }

// Migrated is the migration state; rxe sends 0, hardware 1.
func (b BTH) Migrated() bool { return b[bthFlags]&bthMigrated != 0 }

// SetMigrated sets the migration state.
func (b BTH) SetMigrated(v bool) { b.setFlag(bthFlags, bthMigrated, v) }

// Pad is how many bytes, 0 to 3, fill the payload up to a multiple of four.
func (b BTH) Pad() int { return int(b[bthFlags]&bthPadMask) >> bthPadShift }

// SetPad sets the pad count.
func (b BTH) SetPad(n int) { b[bthFlags] = b[bthFlags]&^bthPadMask | byte(n<<bthPadShift)&bthPadMask }

// Version is the transport header version: zero.
func (b BTH) Version() uint8 { return b[bthFlags] & bthVersion }

// PKey is the partition key.
func (b BTH) PKey() uint16 { return binary.BigEndian.Uint16(b[bthPKey:]) }

// SetPKey sets the partition key.
func (b BTH) SetPKey(k uint16) { binary.BigEndian.PutUint16(b[bthPKey:], k) }

// FECN says that the packet met congestion on its way.
func (b BTH) FECN() bool { return b[bthECN]&bthFECN != 0 }

// SetFECN sets the forward congestion bit.
func (b BTH) SetFECN(v bool) { b.setFlag(bthECN, bthFECN, v) }

// BECN tells the receiver that packets it sent met congestion: set in every CNP.
func (b BTH) BECN() bool { return b[bthECN]&bthBECN != 0 }

// SetBECN sets the backward congestion bit.
func (b BTH) SetBECN(v bool) { b.setFlag(bthECN, bthBECN, v) }

// DestQP is the number of the queue pair that the packet is for.
func (b BTH) DestQP() uint32 { return uint24(b[bthDestQP:]) }

// SetDestQP sets the destination queue pair.
func (b BTH) SetDestQP(n uint32) { putUint24(b[bthDestQP:], n) }

// AckReq asks the responder for an acknowledgement.
func (b BTH) AckReq() bool { return b[bthAckReq]&bthAckReqFlag != 0 }

// SetAckReq sets the acknowledge request bit.
func (b BTH) SetAckReq(v bool) { b.setFlag(bthAckReq, bthAckReqFlag, v) }

// Filler is how many bytes of filler the sender says it has put between payload and ICRC, up
// to MaxFiller and a multiple of four; more than MaxFiller: the filler itself says how many. To IBA the bits are reserved: only vrdma hosts set
// them, and only towards each other.
func (b BTH) Filler() int { return int(b[bthAckReq]&bthFillerMask) * fillerWord }

// SetFiller sets how much filler there is.
func (b BTH) SetFiller(n int) {
	b[bthAckReq] = b[bthAckReq]&^bthFillerMask | byte(n/fillerWord)&bthFillerMask
}

// PSN is the packet sequence number.
func (b BTH) PSN() uint32 { return uint24(b[bthPSN:]) }

// SetPSN sets the packet sequence number.
func (b BTH) SetPSN(n uint32) { putUint24(b[bthPSN:], n) }

func (b BTH) setFlag(at int, flag byte, v bool) {
	if v {
		b[at] |= flag
	} else {
		b[at] &^= flag
	}
}

// Queue pair numbers, PSNs and MSNs are 24 bits long.
func uint24(b []byte) uint32 {
	_ = b[2]
	return uint32(b[0])<<16 | uint32(b[1])<<8 | uint32(b[2])
}

func putUint24(b []byte, v uint32) {
	_ = b[2]
	b[0], b[1], b[2] = byte(v>>16), byte(v>>8), byte(v)
}
