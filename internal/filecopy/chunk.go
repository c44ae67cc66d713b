package filecopy

import (
	"encoding/binary"

	"vrdma.dev/vrdma/internal/net/crc"
)

const (
	// blockSize is the unit of checksums and the smallest piece that is sent.
	blockSize = 128 << 10
	// maxChunk is the size of a slot and the most that one chunk carries.
	maxChunk  = 1 << 20
	maxBlocks = maxChunk / blockSize

	// The header of a chunk directly precedes its data, which begins on a page. One write carries both.
	headSize = 64
	slotHead = 4096
	slotSize = slotHead + maxChunk
)

// Offsets in a header.
const (
	headMagic  = 0
	headID     = 4
	headOffset = 8
	headLength = 16
	headSum    = 20                     // checksum of the header, with this field zero
	headSums   = 24                     // checksums of the blocks
	_          = headSums + 4*maxBlocks // 56
)

const chunkMagic = 0x6b637276 // "vrck"

// A header describes a chunk.
type header struct {
	id     uint32 // of the file
	offset uint64
	length uint32
	sums   [maxBlocks]uint32
}

// blocks returns how many blocks n bytes have.
func blocks(n uint64) uint64 { return (n + blockSize - 1) / blockSize }

// put encodes the header to b.
func (h *header) put(b []byte) {
	b = b[:headSize]
	clear(b)
	binary.LittleEndian.PutUint32(b[headMagic:], chunkMagic)
	binary.LittleEndian.PutUint32(b[headID:], h.id)
	binary.LittleEndian.PutUint64(b[headOffset:], h.offset)
	binary.LittleEndian.PutUint32(b[headLength:], h.length)
	for i, s := range h.sums {
		binary.LittleEndian.PutUint32(b[headSums+4*i:], s)
	}
	binary.LittleEndian.PutUint32(b[headSum:], crc.Castagnoli(b))
}

// parse decodes a header that the peer wrote. It copies b first, because the peer can still write there.
func (h *header) parse(b []byte) error {
	var own [headSize]byte
	if copy(own[:], b) < headSize {
		return violation("a chunk of %d bytes, less than its header", len(b))
	}
	if m := binary.LittleEndian.Uint32(own[headMagic:]); m != chunkMagic {
		return violation("a chunk that begins with %#x, not %#x", m, uint32(chunkMagic))
	}
	sum := binary.LittleEndian.Uint32(own[headSum:])
	clear(own[headSum : headSum+4])
	if got := crc.Castagnoli(own[:]); got != sum {
		return damaged("the header of a chunk has the sum %#x, not %#x", got, sum)
	}
	h.id = binary.LittleEndian.Uint32(own[headID:])
	h.offset = binary.LittleEndian.Uint64(own[headOffset:])
	h.length = binary.LittleEndian.Uint32(own[headLength:])
	for i := range h.sums {
		h.sums[i] = binary.LittleEndian.Uint32(own[headSums+4*i:])
	}
	if h.length == 0 || h.length > maxChunk {
		return violation("a chunk that says it has %d bytes, where 1 to %d fit", h.length, maxChunk)
	}
	if h.offset%blockSize != 0 {
		return violation("a chunk at %d, which is not a multiple of %d", h.offset, blockSize)
	}
	return nil
}

// sum computes the checksums of the data's blocks.
func (h *header) sum(data []byte) {
	for i := range h.sums {
		h.sums[i] = 0
		if n := min(len(data), blockSize); n > 0 {
			h.sums[i] = crc.Castagnoli(data[:n])
			data = data[n:]
		}
	}
}

// check verifies the checksums of the data.
func (h *header) check(data []byte) error {
	var own header
	own.sum(data)
	for i := range blocks(uint64(len(data))) {
		if own.sums[i] != h.sums[i] {
			return damaged("the block at %d has the sum %#x, not %#x", h.offset+i*blockSize, own.sums[i], h.sums[i])
		}
	}
	return nil
}
