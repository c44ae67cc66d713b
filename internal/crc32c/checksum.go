package crc32c

import (
	"hash/crc32"
	"math/bits"
	"sync"
)

var (
	plain = crc32.MakeTable(crc32.Castagnoli)
	ours  = sync.OnceValue(func() *folds { return newFolds(crc32.Castagnoli) })
)

// folds are the factors for folding, a pair for each 16 bytes: for their first half and their second.
type folds struct {
	loop [2]uint64    // over 256 bytes
	join [3][2]uint64 // over 192, 128 and 64 bytes: of the four registers to one
	last [4][2]uint64 // over 48, 32, 16 and no bytes: within a register. The last pair is 0
	// For the 16 bytes that are left: their first half over 96 bits, four bytes over 64, and for Barrett's reduction
	// the polynomial and its quotient.
	end                  [2]uint64
	polynomial, quotient uint64
}

func newFolds(polynomial uint32) *folds {
	f := new(folds)
	// The halves of 16 bytes lie 64 bits apart, and a product of reflected polynomials is one bit
	// short: hence the 32 more and less.
	pair := func(bytes int) [2]uint64 {
		return [2]uint64{power(polynomial, 8*bytes+32), power(polynomial, 8*bytes-32)}
	}
	f.loop = pair(256)
	for i := range f.join {
		f.join[i] = pair(192 - 64*i)
	}
	for i := range 3 {
		f.last[i] = pair(48 - 16*i)
	}
	f.end = [2]uint64{power(polynomial, 96), power(polynomial, 64)}
	f.polynomial, f.quotient = uint64(polynomial)<<1|1, quotient(polynomial)
	return f
}

// power is x^n mod the polynomial, reflected as that is, and shifted to where a product wants it.
func power(polynomial uint32, n int) uint64 {
	r := uint32(1 << 31) // x^0
	for range n {
		carry := r & 1
		r >>= 1
		if carry != 0 {
			r ^= polynomial
		}
	}
	return uint64(r) << 1
}

// quotient is x^64 divided by the polynomial, reflected: 33 bits.
func quotient(polynomial uint32) (q uint64) {
	p := uint64(bits.Reverse32(polynomial)) | 1<<32
	r := uint64(1)
	for i := range 65 {
		if i > 0 {
			r <<= 1
		}
		if r>>32 != 0 {
			r ^= p
			q |= 1 << (i - 32) // of x^(64-i), which reflected in 33 bits is bit 32-(64-i)
		}
	}
	return q
}

// least is what has to be there for folding to be worth it.
const least = 512

// Checksum is the CRC of data.
func Checksum(data []byte) uint32 {
	if !wide || len(data) < least {
		return crc32.Checksum(data, plain)
	}
	n := len(data) &^ 255
	return crc32.Update(^fold(ours(), ^uint32(0), data[:n]), plain, data[n:])
}
