package crc

import "hash/crc32"

var plain = crc32.MakeTable(crc32.Castagnoli)

// folds are the factors for folding, a pair for the two halves of each 16 bytes. Distances are for registers of 64 bytes, in parentheses
// for registers of 32.
type folds struct {
	loop [2]uint64    // over 256 bytes (128)
	join [3][2]uint64 // over 192, 128 and 64 bytes (96, 64, 32): combines the four registers
	last [4][2]uint64 // over 48, 32, 16 and no bytes: within a register; the last pair is 0
	// For the remaining 16 bytes: the first half over 96 bits, four bytes over 64, and for Barrett reduction the polynomial and its
	// quotient.
	end                  [2]uint64
	polynomial, quotient uint64
}

// The factors for a polynomial and a length of registers; TestFolds computes them.
var wideCastagnoli = folds{
	loop:       [2]uint64{0xdcb17aa4, 0xb9e02b86},
	join:       [3][2]uint64{{0xa87ab8a8, 0xab7aff2a}, {0x6992cea2, 0xd3b6092}, {0x740eef02, 0x9e4addf8}},
	last:       [4][2]uint64{{0x1c291d04, 0x1d82c63da}, {0x1384aa63a, 0xba4fc28e}, {0xf20c0dfe, 0x14cd00bd6}},
	end:        [2]uint64{0x14cd00bd6, 0xdd45aab8},
	polynomial: 0x105ec76f1, quotient: 0xdea713f1,
}

var wideEthernet = folds{
	loop:       [2]uint64{0x11542778a, 0x1322d1430},
	join:       [3][2]uint64{{0x1821d8bc0, 0x12e958ac4}, {0x1e88ef372, 0x14a7fe880}, {0x154442bd4, 0x1c6e41596}},
	last:       [4][2]uint64{{0x3db1ecdc, 0x174359406}, {0xf1da05aa, 0x15a546366}, {0x1751997d0, 0xccaa009e}},
	end:        [2]uint64{0xccaa009e, 0x163cd6124},
	polynomial: 0x1db710641, quotient: 0x1f7011641,
}

var halfEthernet = folds{
	loop:       [2]uint64{0x1e88ef372, 0x14a7fe880},
	join:       [3][2]uint64{{0xdf068dc2, 0x18cb44e58}, {0x154442bd4, 0x1c6e41596}, {0xf1da05aa, 0x15a546366}},
	last:       [4][2]uint64{{0x3db1ecdc, 0x174359406}, {0xf1da05aa, 0x15a546366}, {0x1751997d0, 0xccaa009e}},
	end:        [2]uint64{0xccaa009e, 0x163cd6124},
	polynomial: 0x1db710641, quotient: 0x1f7011641,
}

const (
	// least is the minimum length at which folding by 256 bytes is faster,
	least = 512
	// and leastHalf the minimum for folding by 128 bytes.
	leastHalf = 256
)

// Castagnoli returns the CRC of data.
func Castagnoli(data []byte) uint32 {
	if wide && len(data) >= least {
		n := len(data) &^ 255
		return crc32.Update(^fold(&wideCastagnoli, ^uint32(0), data[:n]), plain, data[n:])
	}
	return crc32.Checksum(data, plain)
}

// Ethernet returns the CRC sum continued over data; 0 starts a new one.
func Ethernet(sum uint32, data []byte) uint32 {
	n := 0
	switch {
	case wide && len(data) >= least:
		n = len(data) &^ 255
		sum = ^fold(&wideEthernet, ^sum, data[:n])
	case half && len(data) >= leastHalf:
		n = len(data) &^ 15
		sum = ^foldHalf(&halfEthernet, ^sum, data[:n])
	}
	if n < len(data) {
		sum = crc32.Update(sum, crc32.IEEETable, data[n:])
	}
	return sum
}

// EthernetCopy copies src to dst, which has the same length, and returns the CRC sum continued over the data. It reads src only once, so
// the CRC is that of dst even if src changes meanwhile.
func EthernetCopy(sum uint32, dst, src []byte) uint32 {
	switch {
	case wide && len(src) >= least && len(src)%256 == 0:
		return ^foldCopy(&wideEthernet, ^sum, dst[:len(src)], src)
	case half && len(src) >= leastHalf && len(src)%128 == 0:
		return ^foldCopyHalf(&halfEthernet, ^sum, dst[:len(src)], src)
	}
	copy(dst, src)
	return Ethernet(sum, dst)
}
