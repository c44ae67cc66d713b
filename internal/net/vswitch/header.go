package vswitch

import "encoding/binary"

var le = binary.LittleEndian

// A header is struct virtio_net_hdr_v1 (virtio 1.1, section 5.1.6), which stands before every frame of a virtio
// network card, and of a tap: what was left to whoever gets the frame.
type header struct {
	flags     uint8
	gso       uint8
	headLen   uint16
	segment   uint16 // bytes of payload in each
	sumStart  uint16
	sumOffset uint16
}

const (
	headerSize = 12
	buffersAt  = 10 // where it says how many buffers the frame lies in

	needsSum = 1 // flags: the checksum has to be completed
	sumGood  = 2 // flags: it has been checked

	gsoNone = 0
	gsoTCP4 = 1
	gsoTCP6 = 4
	gsoECN  = 0x80
)

func parseNetHeader(b []byte) header {
	return header{flags: b[0], gso: b[1], headLen: le.Uint16(b[2:]), segment: le.Uint16(b[4:]), sumStart: le.Uint16(b[6:]), sumOffset: le.Uint16(b[8:])}
}

func (h *header) put(b []byte) {
	b[0], b[1] = h.flags, h.gso
	le.PutUint16(b[2:], h.headLen)
	le.PutUint16(b[4:], h.segment)
	le.PutUint16(b[6:], h.sumStart)
	le.PutUint16(b[8:], h.sumOffset)
	le.PutUint16(b[buffersAt:], 1)
}

// settle makes the header of a frame say what the frame itself says, because whoever gets it may believe it. It
// is false for offloads that cannot be.
func (f *frame) settle() bool {
	h := &f.virtio
	h.flags &= needsSum // that a checksum is good is nothing that a sender can say
	if h.flags == 0 {
		if h.gso != gsoNone {
			return false
		}
		*h = header{}
		return true
	}
	switch {
	case f.proto == protoTCP && f.payload > 0:
		h.sumOffset = 16
	case f.proto == protoUDP && f.payload > 0:
		h.sumOffset = 6
	default:
		return false
	}
	if f.fragment || ipEnd(f.head) < f.payload {
		return false
	}
	h.sumStart, h.headLen = uint16(f.l4), 0
	switch h.gso &^ gsoECN {
	case gsoNone:
		h.gso, h.segment = gsoNone, 0
		return true
	case gsoTCP4:
		if f.ether != etherIPv4 {
			return false
		}
	case gsoTCP6:
		if f.ether != etherIPv6 {
			return false
		}
	default:
		return false
	}
	h.headLen = uint16(f.payload)
	return f.proto == protoTCP && h.segment > 0
}
