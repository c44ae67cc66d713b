package vswitch

import "encoding/binary"

var le = binary.LittleEndian

// A header is struct virtio_net_hdr_v1 (virtio 1.1, section 5.1.6), which precedes every frame of a virtio network card and of a
// tap. It describes the work left to the receiver of the frame.
type header struct {
	flags     uint8
	gso       uint8
	headLen   uint16
	segment   uint16 // payload bytes per segment
	sumStart  uint16
	sumOffset uint16
}

const (
	headerSize = 12
	buffersAt  = 10 // offset of the number of buffers

	needsSum = 1 // flag: the checksum is incomplete
	sumGood  = 2 // flag: the checksum has been verified

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

// settle makes the virtio header consistent with the frame, because the receiver may trust it. It returns false for impossible
// offloads.
func (f *frame) settle() bool {
	h := &f.virtio
	h.flags &= needsSum // a sender cannot vouch for a checksum
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
