package filecopy

import (
	"crypto/sha256"
	"encoding/binary"
	"fmt"
)

// digestSize is the size of the checksum of all checksums.
const digestSize = sha256.Size

// pageSums is how many checksums a page of a table has.
const pageSums = 4096

// A table has the checksums of a file's blocks. Those of holes and unset ones are 0. Pages are made when they are needed, so that a
// large announced file that does not come takes little memory.
type table struct {
	size  uint64 // of the file
	pages []*[pageSums]uint32
}

func newTable(size uint64) *table {
	return &table{size: size, pages: make([]*[pageSums]uint32, (blocks(size)+pageSums-1)/pageSums)}
}

func (t *table) set(block uint64, sum uint32) {
	p := &t.pages[block/pageSums]
	if *p == nil {
		*p = new([pageSums]uint32)
	}
	(*p)[block%pageSums] = sum
}

var noSums [pageSums]uint32

// digest returns the SHA-256 of the size and all checksums.
func (t *table) digest() (d [digestSize]byte) {
	h := sha256.New()
	b := binary.LittleEndian.AppendUint64(nil, t.size)
	left := blocks(t.size)
	for _, p := range t.pages {
		if p == nil {
			p = &noSums
		}
		n := min(left, pageSums)
		for _, s := range p[:n] {
			b = binary.LittleEndian.AppendUint32(b, s)
		}
		h.Write(b)
		b, left = b[:0], left-n
	}
	h.Write(b) // an empty file has only its size
	h.Sum(d[:0])
	return d
}

// A set is a set of blocks. Pages are made when they are needed.
type set struct{ pages map[uint64]*[512]uint64 }

const setPage = 512 * 64

// add adds a block and reports whether it is new.
func (s *set) add(block uint64) bool {
	if s.pages == nil {
		s.pages = make(map[uint64]*[512]uint64)
	}
	p := s.pages[block/setPage]
	if p == nil {
		p = new([512]uint64)
		s.pages[block/setPage] = p
	}
	w, bit := &p[block%setPage/64], uint64(1)<<(block%64)
	fresh := *w&bit == 0
	*w |= bit
	return fresh
}

// A DamagedError means that data differs from what was sent.
type DamagedError struct{ text string }

func (e *DamagedError) Error() string { return "the data was damaged on its way: " + e.text }

func damaged(format string, args ...any) error { return &DamagedError{fmt.Sprintf(format, args...)} }
