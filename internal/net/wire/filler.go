package wire

import "encoding/binary"

// Packets that one send call transmits with GSO must have equal lengths. But the first packet of a
// WRITE is longer than the others by its RETH, and the middle packets of a READ response are shorter by
// the AETH. Between vrdma hosts (FeatureFiller), filler makes the shorter packets equally long:
//
//	BTH RETH payload            ICRC      first
//	BTH payload      fill fill… ICRC      middle, last: reserved bits of the BTH say how much
//
// So all packets of a message stream have one length. The send calls and the network stack cost as much
// as the copying, and filler halves the number of calls.
//
// The last packet of a message may be much shorter, which ends a GSO run. If it has at least half of the
// length, it gets filler too (FeatureLongFiller):
//
//	BTH payload fill fill… length ICRC      all of the reserved bits are set, and the last word says how much
//
// IBA requires receivers to ignore reserved bits. So the receiver interprets them only if the filler
// itself is present.

const (
	fillerWord = 4
	// fillerText is the content of each filler word.
	fillerText = 'f'<<24 | 'i'<<16 | 'l'<<8 | 'l'
	// MaxFiller is the largest length that the bits of the BTH can express. All bits set mean more.
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
	clear(b) // the buffer may contain data of another program
	putFiller(b[len(b)-2*fillerWord : len(b)-fillerWord])
	binary.BigEndian.PutUint32(b[len(b)-fillerWord:], uint32(len(b)))
}

// longFiller returns how many of the last bytes of b are filler if there are more than MaxFiller but at
// most room, and 0 otherwise.
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

// isFilled reports whether the last k bytes of b are filler. It returns false if k exceeds room.
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
