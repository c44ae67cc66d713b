package memory

import (
	"bytes"
	"testing"

	"golang.org/x/sys/unix"

	"vrdma.dev/vrdma/internal/budget"
)

// slab is a backing without a descriptor: one run of memory, like that of a virtual machine.
type slab struct {
	mem    []byte
	mapped int
}

func newSlab(t *testing.T, size int) *slab {
	t.Helper()
	mem, err := unix.Mmap(-1, 0, size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { unix.Munmap(mem) })
	return &slab{mem: mem}
}

func (s *slab) Size() uint64 { return uint64(len(s.mem)) }

func (s *slab) Map(offset uint64, size int) ([]byte, error) {
	s.mapped++
	return s.mem[offset : offset+uint64(size)], nil
}

func (s *slab) Unmap([]byte)              {}
func (s *slab) Used() (uint64, error)     { return s.Size(), nil }
func (s *slab) Hole(offset uint64) uint64 { return s.Size() }
func (s *slab) Close() error              { return nil }

// scattered is a region whose pages lie in the backing in reverse order.
func scattered(t *testing.T, pages uint64) (*Region, *slab) {
	t.Helper()
	b := newSlab(t, int(pages)*pageSize)
	s := NewSpaceIn(b, 0)
	s.SetAccount(budget.New(budget.Limits{All: plenty(), Others: plenty(), User: plenty()}).User(1))
	t.Cleanup(s.Close)
	const start = 0x5555_0000_0000
	var extents []Extent
	for i := range pages {
		extents = append(extents, Extent{
			Start: start + i*pageSize, Length: pageSize, Kind: Own, Prot: 3, Offset: (pages - 1 - i) * pageSize,
		})
	}
	r, err := s.Map(start, pages*pageSize, extents)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(r.Release)
	return r, b
}

// An extent lies where its offset says, whatever the client's address is.
func TestExtentNamesAnOffset(t *testing.T) {
	const pages = 5
	r, b := scattered(t, pages)
	want := pattern(pages * pageSize)
	for i := range pages {
		copy(b.mem[(pages-1-i)*pageSize:], want[i*pageSize:(i+1)*pageSize])
	}
	if got := flat(t, r, 0, pages*pageSize); !bytes.Equal(got, want) {
		t.Error("the region's bytes are not those at the extents' offsets")
	}
	if got := flat(t, r, pageSize-3, 2*pageSize); !bytes.Equal(got, want[pageSize-3:3*pageSize-3]) {
		t.Error("a part of the region is not what lies at the extents' offsets")
	}
	if b.mapped != 1 {
		t.Errorf("the backing was mapped %d times, want once for its only window", b.mapped)
	}
}

func TestExtentBeyondTheBacking(t *testing.T) {
	s := NewSpaceIn(newSlab(t, 4*pageSize), 0)
	defer s.Close()
	for _, offset := range []uint64{4 * pageSize, 3*pageSize + 1, ^uint64(0) - 10} {
		e := Extent{Start: pageSize, Length: pageSize, Kind: Own, Prot: 3, Offset: offset}
		if _, err := s.Map(pageSize, pageSize, []Extent{e}); err == nil {
			t.Errorf("a page at offset %#x of a backing of %#x bytes was registered", offset, 4*pageSize)
		}
	}
}

// A piece is found without a walk: as many comparisons as the number of pieces has digits.
func TestFindPiece(t *testing.T) {
	for _, pages := range []uint64{1, 2, 3, 7, 64, 4096} {
		r, _ := scattered(t, pages)
		if len(r.pieces) != int(pages) {
			t.Fatalf("%d extents became %d pieces", pages, len(r.pieces))
		}
		for off := uint64(0); off < r.length; off += pageSize / 2 {
			if got, want := r.find(off), int(off/pageSize); got != want {
				t.Fatalf("offset %#x of %d pages is in piece %d, want %d", off, pages, got, want)
			}
		}
		if got := r.find(r.length - 1); got != int(pages)-1 {
			t.Errorf("the last byte of %d pages is in piece %d", pages, got)
		}
		var s Span
		if n := testing.AllocsPerRun(10, func() { s.Reset(); r.Span(r.length-pageSize/2, pageSize/2, &s) }); n != 0 {
			t.Errorf("a span allocates %v times", n)
		}
	}
}

// BenchmarkSpan is the last page of a region of many pieces.
func BenchmarkSpan(b *testing.B) {
	r := &Region{length: 65536 * pageSize}
	mem := make([]byte, pageSize)
	for i := range uint64(65536) {
		r.pieces = append(r.pieces, regionPiece{off: i * pageSize, n: pageSize, mem: mem})
	}
	var s Span
	for b.Loop() {
		s.Reset()
		r.Span(r.length-8, 8, &s)
	}
}
