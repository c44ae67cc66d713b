package memory

import (
	"bytes"
	"errors"
	"os"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
)

func newSpace(t *testing.T, quota uint64) *Space {
	t.Helper()
	s, err := NewSpace(quota)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Close)
	return s
}

// fill writes what a process would have at addr.
func fill(t *testing.T, s *Space, addr uint64, b []byte) {
	t.Helper()
	if _, err := unix.Pwrite(int(s.File().Fd()), b, int64(addr)); err != nil {
		t.Fatal(err)
	}
}

func pattern(n int) []byte {
	b := make([]byte, n)
	for i := range b {
		b[i] = byte(i*7 + i>>8)
	}
	return b
}

func flat(t *testing.T, r *Region, off, n uint64) []byte {
	t.Helper()
	var src, dst Span
	if !r.Span(off, n, &src) {
		t.Fatalf("Span(%d, %d) of %d bytes refused", off, n, r.Length())
	}
	out := make([]byte, n)
	dst.Add(out)
	var c Copier
	if k, err := c.Copy(&dst, &src); err != nil || k != int(n) {
		t.Fatalf("Copy = %d, %v, want %d", k, err, n)
	}
	return out
}

func TestRegionAcrossWindows(t *testing.T) {
	s := newSpace(t, 0)
	start := uint64(7)<<windowBits - 5000 // the last bytes of one window, the first of the next
	want := pattern(10000)
	fill(t, s, start, want)
	r, err := s.Map(start, 10000, []Extent{{Start: start, Offset: start, Length: 10000, Kind: Own, Prot: ProtRead | ProtWrite}})
	if err != nil {
		t.Fatal(err)
	}
	if got := flat(t, r, 0, 10000); !bytes.Equal(got, want) {
		t.Error("bytes across a window border differ")
	}
	if got := flat(t, r, 4999, 3); !bytes.Equal(got, want[4999:5002]) {
		t.Errorf("around the border: got %x, want %x", got, want[4999:5002])
	}
	if n := len(s.windows); n != 2 {
		t.Errorf("%d windows mapped, want 2", n)
	}
	r.Release()
	r.Release()
	if n := len(s.windows); n != 0 || s.Mapped() != 0 {
		t.Errorf("after release: %d windows, %d bytes", n, s.Mapped())
	}
}

func TestRegionsShareWindows(t *testing.T) {
	s := newSpace(t, 0)
	var rs []*Region
	for i := range uint64(100) {
		r, err := s.Map(1<<32+i*4096, 100, []Extent{{Start: 1<<32 + i*4096, Offset: 1<<32 + i*4096, Length: 100, Kind: Own, Prot: 3}})
		if err != nil {
			t.Fatal(err)
		}
		rs = append(rs, r)
	}
	if n := len(s.windows); n != 1 {
		t.Errorf("100 regions of one gibibyte took %d windows", n)
	}
	for _, r := range rs {
		r.Release()
	}
}

// A second registration of the same memory does not check its pages again. Only whole chunks are remembered, and only
// while the window is mapped.
func TestFilledChunksAreRemembered(t *testing.T) {
	s := newSpace(t, 0)
	const start = 5<<windowBits + chunkSize - 100
	const length = 100 + chunkSize + 100
	m := func() *Region {
		r, err := s.Map(start, length, []Extent{{Start: start, Offset: start, Length: length, Kind: Own, Prot: 3}})
		if err != nil {
			t.Fatal(err)
		}
		return r
	}
	want := pattern(length)
	fill(t, s, start, want)
	first := m()
	for i, want := range []bool{false, true, false} {
		if got := s.windows[windowKey{n: 5}].filled[i]; got != want {
			t.Errorf("chunk %d filled: %v, want %v", i, got, want)
		}
	}
	second := m()
	first.Release()
	if got := flat(t, second, 0, length); !bytes.Equal(got, want) {
		t.Error("bytes of the second region differ")
	}
	second.Release()
	if n := len(s.windows); n != 0 {
		t.Errorf("%d windows after release", n)
	}
}

// A process removes its pages from the file when no region covers them: what was remembered of exactly these pages is
// forgotten.
func TestFilledChunksAreForgotten(t *testing.T) {
	s := newSpace(t, 0)
	const start = 5 << windowBits
	m := func(off, length uint64) *Region {
		r, err := s.Map(start+off, length, []Extent{{Start: start + off, Offset: start + off, Length: length, Kind: Own, Prot: 3}})
		if err != nil {
			t.Fatal(err)
		}
		return r
	}
	check := func(when string, want ...bool) {
		t.Helper()
		for i, want := range want {
			if got := s.windows[windowKey{n: 5}].filled[i]; got != want {
				t.Errorf("%s: chunk %d filled: %v, want %v", when, i, got, want)
			}
		}
	}
	fill(t, s, start, pattern(3*chunkSize))
	small := m(0, 4096) // keeps the window
	all := m(0, 3*chunkSize)
	middle := m(chunkSize-100, chunkSize+200)
	check("registered", true, true, true)
	all.Release()
	check("one of two regions released", false, true, false)
	middle.Release()
	check("both released", false, false, false)
	again := m(0, 3*chunkSize)
	check("registered again", true, true, true)
	again.Release()
	small.Release()
}

// Registering untouched memory allocates nothing in the daemon.
func TestHolesStayHoles(t *testing.T) {
	s := newSpace(t, 0)
	const start, length = 7 << windowBits, 64 << 20
	r, err := s.Map(start, length, []Extent{{Start: start, Offset: start, Length: length, Kind: Own, Prot: 3}})
	if err != nil {
		t.Fatal(err)
	}
	defer r.Release()
	var st unix.Stat_t
	if err := unix.Fstat(int(s.File().Fd()), &st); err != nil {
		t.Fatal(err)
	}
	if st.Blocks != 0 {
		t.Errorf("the file has %d bytes after registering a hole, want none", st.Blocks*512)
	}
}

func TestMapRefuses(t *testing.T) {
	s := newSpace(t, 1<<20)
	for _, c := range []struct {
		name          string
		start, length uint64
		extents       []Extent
		want          error
	}{
		{"hole", 4096, 8192, []Extent{{Start: 4096, Offset: 4096, Length: 4096, Kind: Own, Prot: 3}, {Start: 8192, Offset: 8192, Length: 4096, Kind: Hole, Prot: 0}}, syscall.EFAULT},
		{"too short", 4096, 8192, []Extent{{Start: 4096, Offset: 4096, Length: 4096, Kind: Own, Prot: 3}}, syscall.EFAULT},
		{"gap", 4096, 8192, []Extent{{Start: 4096, Offset: 4096, Length: 4096, Kind: Own, Prot: 3}, {Start: 8193, Offset: 8193, Length: 4095, Kind: Own, Prot: 3}}, syscall.EINVAL},
		{"too long", 4096, 4096, []Extent{{Start: 4096, Offset: 4096, Length: 8192, Kind: Own, Prot: 3}}, syscall.EINVAL},
		{"wraps", ^uint64(0) - 10, 100, nil, syscall.EINVAL},
		{"beyond the address space", 1<<47 - 4096, 8192, []Extent{{Start: 1<<47 - 4096, Offset: 1<<47 - 4096, Length: 8192, Kind: Own, Prot: 3}}, syscall.EFAULT},
		{"unknown kind", 4096, 4096, []Extent{{Start: 4096, Offset: 4096, Length: 4096, Kind: 9, Prot: 3}}, syscall.EFAULT},
		{"over the quota", 4096, 2 << 20, []Extent{{Start: 4096, Offset: 4096, Length: 2 << 20, Kind: Own, Prot: 3}}, syscall.ENOMEM},
	} {
		t.Run(c.name, func(t *testing.T) {
			if _, err := s.Map(c.start, c.length, c.extents); !errors.Is(err, c.want) {
				t.Errorf("got %v, want %v", err, c.want)
			}
		})
	}
	if s.Mapped() != 0 || len(s.windows) != 0 {
		t.Errorf("refused regions left %d bytes and %d windows", s.Mapped(), len(s.windows))
	}
}

// One byte in each of many gibibytes would take a mapping each.
func TestWindowsAreBounded(t *testing.T) {
	s := newSpace(t, 0)
	var rs []*Region
	for i := range uint64(maxWindows + 1) {
		r, err := s.Map(i<<windowBits, 1, []Extent{{Start: i << windowBits, Offset: i << windowBits, Length: 1, Kind: Own, Prot: 3}})
		if i == maxWindows {
			if !errors.Is(err, syscall.ENOMEM) {
				t.Errorf("window %d: got %v, want ENOMEM", i, err)
			}
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		rs = append(rs, r)
	}
	for _, r := range rs {
		r.Release()
	}
	if len(s.windows) != 0 {
		t.Errorf("%d windows left", len(s.windows))
	}
}

func TestZeroLength(t *testing.T) {
	s := newSpace(t, 0)
	r, err := s.Map(12345, 0, nil)
	if err != nil {
		t.Fatal(err)
	}
	var sp Span
	if !r.Span(0, 0, &sp) || r.Span(0, 1, &sp) {
		t.Error("a region of no bytes gives none")
	}
	r.Release()
}

// A foreign extent is memory of a process that was not replaced; here, of the test
// itself.
func TestForeign(t *testing.T) {
	s := newSpace(t, 0)
	f, err := os.OpenFile("/proc/self/mem", os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	s.SetForeign(f)
	mem, err := unix.Mmap(-1, 0, 3*pageSize, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANON)
	if err != nil {
		t.Fatal(err)
	}
	want := pattern(len(mem))
	copy(mem, want)
	base := addressOf(mem)
	r, err := s.Map(base, uint64(len(mem)), []Extent{{Start: base, Offset: base, Length: uint64(len(mem)), Kind: Foreign, Prot: ProtRead}})
	if err != nil {
		t.Fatal(err)
	}
	defer r.Release()
	if r.Writable() {
		t.Error("an extent without write permission makes the region read only")
	}
	woken := make(chan struct{}, 100)
	p := NewPool(func() { woken <- struct{}{} })
	defer p.Close()
	run := func(j *Job) error {
		t.Helper()
		if !p.Start(0, j) {
			t.Fatal("the job was refused")
		}
		return await(t, p, woken, 1)[0].Err()
	}
	var read, write Job
	var src, dst Span
	r.Span(100, 5000, &src)
	r.Span(7000, 5000, &dst)
	read.Read()
	read.ReadMore(&src, 0)
	read.Fetch()
	if err := run(&read); err != nil {
		t.Fatal(err)
	}
	if ok, err := read.Stage(&src, 0); !ok || err != nil {
		t.Fatalf("staged: %v, %v", ok, err)
	}
	write.Write(&dst, &src)
	if err := run(&write); err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(mem[7000:12000], want[100:5100]) {
		t.Error("foreign bytes differ")
	}
	var c Copier
	if _, err := c.Copy(&dst, &src); !errors.Is(err, syscall.EFAULT) {
		t.Errorf("copying to foreign memory in place: got %v, want EFAULT", err)
	}
	// The process unmaps it meanwhile.
	unix.Munmap(mem)
	if err := run(&write); !errors.Is(err, syscall.EFAULT) {
		t.Errorf("writing unmapped memory: got %v, want EFAULT", err)
	}
	src.Reset()
	r.Span(100, 5000, &src)
	read.Read()
	read.ReadMore(&src, 0)
	read.Fetch()
	if err := run(&read); !errors.Is(err, syscall.EFAULT) {
		t.Errorf("reading unmapped memory: got %v, want EFAULT", err)
	}
}

func TestAtomic(t *testing.T) {
	for _, align := range []int{0, 1} { // aligned: processor atomics; unaligned: copies
		b := make([]byte, 16)
		var s Span
		s.Add(b[align : align+8])
		var c Copier
		if old, err := c.Atomic(&s, false, 0, 5); old != 0 || err != nil {
			t.Errorf("add: %d, %v", old, err)
		}
		if old, _ := c.Atomic(&s, true, 4, 9); old != 5 {
			t.Errorf("failed swap returned %d, want 5", old)
		}
		if old, _ := c.Atomic(&s, true, 5, 9); old != 5 {
			t.Errorf("swap returned %d, want 5", old)
		}
		if old, _ := c.Atomic(&s, false, 0, 0); old != 9 {
			t.Errorf("got %d, want 9", old)
		}
		c.Store(&s, 77)
		if old, _ := c.Atomic(&s, false, 0, 0); old != 77 {
			t.Errorf("got %d after Store, want 77", old)
		}
	}
}

func TestCopyDoesNotAllocate(t *testing.T) {
	a, b := make([]byte, 4096), make([]byte, 4096)
	var src, dst Span
	var c Copier
	n := testing.AllocsPerRun(100, func() {
		src.Reset()
		dst.Reset()
		src.Add(a[:100])
		src.Add(a[200:1000])
		dst.Add(b[:900])
		c.Copy(&dst, &src)
	})
	if n != 0 {
		t.Errorf("%v allocations a copy, want 0", n)
	}
}

// Seals: a client that truncates the file would remove our pages.
func TestSealed(t *testing.T) {
	s := newSpace(t, 0)
	if err := unix.Ftruncate(int(s.File().Fd()), 0); err == nil {
		t.Error("the memfd could be truncated")
	}
}

// TestManyPieces: in a region of many pieces every offset is found, and borders inside a page
// are refused, which no address space has: the loop would go through a piece for every byte.
func TestManyPieces(t *testing.T) {
	s := newSpace(t, 0)
	s.SetForeign(&holes{})
	const base, pages = uint64(1 << 32), 101
	var es []Extent
	for i := range uint64(pages) {
		kind := Own
		if i%2 == 1 {
			kind = Foreign
		}
		es = append(es, Extent{Start: base + i*pageSize, Length: pageSize, Kind: kind, Prot: ProtRead | ProtWrite})
	}
	r, err := s.Map(base, pages*pageSize, es)
	if err != nil {
		t.Fatal(err)
	}
	defer r.Release()
	for _, off := range []uint64{0, 1, pageSize - 1, pageSize, 50*pageSize - 1, 50 * pageSize, (pages - 1) * pageSize, pages*pageSize - 1} {
		var sp Span
		if !r.Span(off, 1, &sp) || sp.Len() != 1 || sp.Foreign() != (off/pageSize%2 == 1) {
			t.Errorf("offset %d: %d bytes, foreign %v", off, sp.Len(), sp.Foreign())
		}
	}
	var sp Span
	if !r.Span(1, pages*pageSize-1, &sp) || sp.Len() != pages*pageSize-1 || len(sp.Pieces()) != pages {
		t.Errorf("nearly all of it: %d bytes in %d pieces", sp.Len(), len(sp.Pieces()))
	}
	_, err = s.Map(base, 3, []Extent{{Start: base, Length: 1, Kind: Own, Prot: 3}, {Start: base + 1, Length: 2, Kind: Own, Prot: 3}})
	if err != syscall.EINVAL {
		t.Errorf("a border inside a page: %v, want EINVAL", err)
	}
	// Consecutive foreign pages need one piece.
	f, err := s.Map(base, 2*pageSize, []Extent{{Start: base, Length: pageSize, Kind: Foreign, Prot: 3}, {Start: base + pageSize, Length: pageSize, Kind: Foreign, Prot: 3}})
	if err != nil || len(f.pieces) != 1 {
		t.Fatalf("two foreign extents in a row: %v", err)
	}
	f.Release()
}

// holes is the memory of a process that is zero everywhere.
type holes struct{}

func (*holes) ReadAt(b []byte, _ int64) (int, error)  { clear(b); return len(b), nil }
func (*holes) WriteAt(b []byte, _ int64) (int, error) { return len(b), nil }
func (*holes) Close() error                           { return nil }
