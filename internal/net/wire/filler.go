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
// A message's last packet may be much shorter, and ends a run of packets that leave in one call. Where
// it has half of the length or more, it is made as long, too (FeatureLongFiller):
//
//	BTH payload fill fill… length ICRC      all of the reserved bits are set, and the last word says how much
//
// Who gets a packet with reserved bits must ignore them, says IBA, and so do we unless the
// filler itself is there.

const (
	fillerWord = 4
	// fillerText is what filler consists of.
	fillerText = 'f'<<24 | 'i'<<16 | 'l'<<8 | 'l'
	// MaxFiller is the most that the bits of the BTH can say. They are all set where there is more.
	MaxFiller = (bthFillerMask - 1) * fillerWord
)

// putFiller writes filler.
func putFiller(b []byte) {
	for ; len(b) >= fillerWord; b = b[fillerWord:] {
		binary.BigEndian.PutUint32(b, fillerText)
	}
}

// putLongFiller writes filler of more than MaxFiller bytes.
func putLongFiller(b []byte) {
	clear(b) // what is there may be another's
	putFiller(b[len(b)-2*fillerWord : len(b)-fillerWord])
	binary.BigEndian.PutUint32(b[len(b)-fillerWord:], uint32(len(b)))
}

// longFiller is how many of the last bytes of b are filler, if there is more than MaxFiller but not more
// than room, and else 0.
func longFiller(b []byte, room int) int {
	if room <= MaxFiller {
		return 0
	}
	b = b[len(b)-2*fillerWord:]
	k := binary.BigEndian.Uint32(b[fillerWord:])
	if k <= MaxFiller || k > uint32(room) || k%fillerWord != 0 || binary.BigEndian.Uint32(b) != fillerText {
		return 0
	}
	return int(k)
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
