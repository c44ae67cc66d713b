package filecopy

import (
	"context"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"io"
	"os"
	"strings"

	"golang.org/x/sys/unix"

	"vrdma.dev/vrdma/internal/net/crc"
)

// The partial file of an earlier attempt is compared with the source block by block. So it does not matter which attempt left it, or
// whether the source has changed. The compared checksums are the first 64 bits of SHA-256: a 32-bit CRC would miss one changed block
// in four billion.

// strongSum returns such a checksum. It is never 0, which means that there is none.
func strongSum(b []byte) uint64 {
	s := sha256.Sum256(b)
	return max(binary.LittleEndian.Uint64(s[:]), 1)
}

func splitLines(s string) []string { return strings.Split(s, "\n") }

// survey reads a partial file and passes on its checksums: strong ones to tell, CRCs to the table. It skips holes.
func (p *partial) survey(ctx context.Context, size uint64, tell func(first uint64, sums []uint64) error, note func(block uint64, crc uint32)) error {
	limit := min(uint64(p.had), size)
	buf := make([]byte, blockSize)
	var sums []uint64
	first := uint64(0)
	for block := range blocks(limit) {
		if err := context.Cause(ctx); err != nil {
			return err
		}
		at := block * blockSize
		n := min(size-at, blockSize)
		sum := uint64(0)
		if at+n <= uint64(p.had) && !hole(p.f, int64(at), int64(n)) {
			if _, err := p.f.ReadAt(buf[:n], int64(at)); err != nil {
				return err
			}
			sum = strongSum(buf[:n])
			note(block, crc.Castagnoli(buf[:n]))
		}
		if sums = append(sums, sum); len(sums) == sumsInMessage {
			if err := tell(first, sums); err != nil {
				return err
			}
			first, sums = block+1, nil
		}
	}
	if len(sums) > 0 {
		return tell(first, sums)
	}
	return nil
}

// hole reports whether n bytes of a file are all in a hole.
func hole(f *os.File, at, n int64) bool {
	data, found := nextData(f, at)
	return !found || data >= at+n
}

// nextData returns the offset of the next data. A file system without holes has data everywhere.
func nextData(f *os.File, at int64) (int64, bool) {
	off, err := unix.Seek(int(f.Fd()), at, unix.SEEK_DATA)
	switch {
	case err == nil:
		return off, true
	case errors.Is(err, unix.ENXIO):
		return 0, false
	}
	return at, true
}

// nextHole returns the end of the data at an offset.
func nextHole(f *os.File, at, size int64) int64 {
	off, err := unix.Seek(int(f.Fd()), at, unix.SEEK_HOLE)
	if err != nil || off <= at {
		return size
	}
	return off
}

// readFull reads a piece of a file and fails if the file is shorter.
func readFull(f *os.File, b []byte, at int64) error {
	n, err := f.ReadAt(b, at)
	if n == len(b) {
		return nil
	}
	if err == nil || errors.Is(err, io.EOF) {
		return errShrunk
	}
	return err
}

var errShrunk = errors.New("it became shorter while it was copied")
