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

// IsValid reports whether b is long enough and has transport header version 0, the only one.
func (b BTH) IsValid() bool { return len(b) >= BTHSize && b[bthFlags]&bthVersion == 0 }

// Opcode returns the opcode, which determines the headers that follow.
func (b BTH) Opcode() Opcode { return Opcode(b[bthOpcode]) }

// SetOpcode sets the opcode.
func (b BTH) SetOpcode(o Opcode) { b[bthOpcode] = byte(o) }

// Solicited reports whether the packet requests a solicited completion event.
func (b BTH) Solicited() bool { return b[bthFlags]&bthSolicited != 0 }

// SetSolicited sets the solicited event bit.
func (b BTH) SetSolicited(v bool) { b.setFlag(bthFlags, bthSolicited, v) }

// Migrated returns the migration state; rxe sends 0, hardware 1.
func (b BTH) Migrated() bool { return b[bthFlags]&bthMigrated != 0 }

// SetMigrated sets the migration state.
func (b BTH) SetMigrated(v bool) { b.setFlag(bthFlags, bthMigrated, v) }

// Pad returns the number of pad bytes, 0 to 3, that extend the payload to a multiple of four.
func (b BTH) Pad() int { return int(b[bthFlags]&bthPadMask) >> bthPadShift }

// SetPad sets the pad count.
func (b BTH) SetPad(n int) { b[bthFlags] = b[bthFlags]&^bthPadMask | byte(n<<bthPadShift)&bthPadMask }

// Version returns the transport header version, which is 0.
func (b BTH) Version() uint8 { return b[bthFlags] & bthVersion }

// PKey returns the partition key.
func (b BTH) PKey() uint16 { return binary.BigEndian.Uint16(b[bthPKey:]) }

// SetPKey sets the partition key.
func (b BTH) SetPKey(k uint16) { binary.BigEndian.PutUint16(b[bthPKey:], k) }

// FECN reports whether the packet met congestion.
func (b BTH) FECN() bool { return b[bthECN]&bthFECN != 0 }

// SetFECN sets the forward congestion bit.
func (b BTH) SetFECN(v bool) { b.setFlag(bthECN, bthFECN, v) }

// BECN reports whether packets of the receiver met congestion; it is set in every CNP.
func (b BTH) BECN() bool { return b[bthECN]&bthBECN != 0 }

// SetBECN sets the backward congestion bit.
func (b BTH) SetBECN(v bool) { b.setFlag(bthECN, bthBECN, v) }

// DestQP returns the number of the destination queue pair.
func (b BTH) DestQP() uint32 { return uint24(b[bthDestQP:]) }

// SetDestQP sets the destination queue pair.
func (b BTH) SetDestQP(n uint32) { putUint24(b[bthDestQP:], n) }

// AckReq reports whether the sender requests an acknowledgement.
func (b BTH) AckReq() bool { return b[bthAckReq]&bthAckReqFlag != 0 }

// SetAckReq sets the acknowledge request bit.
func (b BTH) SetAckReq(v bool) { b.setFlag(bthAckReq, bthAckReqFlag, v) }

// Filler returns the number of filler bytes between payload and ICRC that the header claims: a
// multiple of four, up to MaxFiller. A larger value means that the filler itself contains its length.
// IBA reserves these bits: vrdma hosts set them only in packets to other vrdma hosts.
func (b BTH) Filler() int { return int(b[bthAckReq]&bthFillerMask) * fillerWord }

// SetFiller sets the number of filler bytes.
func (b BTH) SetFiller(n int) {
	b[bthAckReq] = b[bthAckReq]&^bthFillerMask | byte(n/fillerWord)&bthFillerMask
}

// PSN returns the packet sequence number.
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

// uint24 reads a 24-bit field: a queue pair number, PSN or MSN.
func uint24(b []byte) uint32 {
	_ = b[2]
	return uint32(b[0])<<16 | uint32(b[1])<<8 | uint32(b[2])
}

func putUint24(b []byte, v uint32) {
	_ = b[2]
	b[0], b[1], b[2] = byte(v>>16), byte(v>>8), byte(v)
}
