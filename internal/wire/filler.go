package wire

import "encoding/binary"

// The packets that one send call cuts up (GSO) must be of one length, but a WRITE's first
// packet is longer than the others by its RETH, and the middle ones of a READ's response are
// shorter by the AETH. Between vrdma hosts (FeatureFiller) the others are therefore made as
// long:
//
//	BTH RETH payload            ICRC      first
//	BTH payload      fill fill… ICRC      middle, last: reserved bits of the BTH say how much
//
// so that a stream of messages is one of packets of one length. The call and the network
// stack cost as much as the copying, and it makes them half as many.
//
// Who gets a packet with reserved bits must ignore them, says IBA, and so do we unless the
// filler itself is there.

const (
	fillerWord = 4
	// fillerText is what filler consists of.
	fillerText = 'f'<<24 | 'i'<<16 | 'l'<<8 | 'l'
	// MaxFiller is the most that a packet can have.
	MaxFiller = bthFillerMask * fillerWord
)

// putFiller writes filler.
func putFiller(b []byte) {
	for ; len(b) >= fillerWord; b = b[fillerWord:] {
		binary.BigEndian.PutUint32(b, fillerText)
	}
}

// isFilled reports whether the last k bytes of b, which are no more than room, are filler.
func isFilled(b []byte, k, room int) bool {
	if k > room {
		return false
	}
	for b = b[len(b)-k:]; len(b) >= fillerWord; b = b[fillerWord:] {
		if binary.BigEndian.Uint32(b) != fillerText {
			return false
		}
	}
	return true
}
