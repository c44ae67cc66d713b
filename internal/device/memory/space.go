package memory

import (
	"os"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"
)

const (
	// spaceBits is the size of a user address space on every 64-bit machine we
	// serve; a larger address (LA57) is treated as foreign by the shim.
	spaceBits  = 47
	windowBits = 30
	windowSize = 1 << windowBits
	// maxWindows keeps one process from using up the daemon's mappings
	// (vm.max_map_count, 65530 by default). Ordinary ones have three or four.
	maxWindows = 256
	chunkSize  = 2 << 20 // what filled counts in
	pageSize   = 4096
)

// A Space is the registered memory of one client, today a process.
type Space struct {
	backing Backing
	foreign Remote // nil: we may not
	writers writers
	// Aside runs what may be held up by the process's memory, somewhere where that does no
	// harm; nil: in place.
	Aside func(func() error) error

	mappings *Mappings // nil: shared memory is foreign

	mu      sync.Mutex
	windows map[windowKey]*window
	files   map[fileKey]*SharedFile // those that have windows
	regions map[uint64]*Region      // those that live, by ID
	last    uint64                  // ID of the region made last
	mapped  uint64                  // bytes of regions that live, for the quota
	quota   uint64
	closed  bool
	charges charges
}

// A windowKey names a window: an aligned gibibyte, n, of the backing or of a shared file. A window
// of a shared file has only the part in the client's own mapping, [lo, hi): to map more of a
// hugetlbfs file would make the file longer.
type windowKey struct {
	n      uint64
	file   *SharedFile // nil: the backing
	lo, hi uint64
}

// A fileKey names a shared file and what may be done with it.
type fileKey struct {
	id       fileID
	writable bool
}

// A source is what windows are of: a Backing or a SharedFile.
type source interface {
	Map(offset uint64, size int) ([]byte, error)
	Unmap(mem []byte)
	Hole(offset uint64) uint64
}

// A window is a part of the backing, or of a shared file, mapped while a region needs it.
type window struct {
	key    windowKey
	mem    []byte
	base   uint64 // offset of mem
	of     source
	file   *SharedFile // nil: of the backing
	refs   int
	filled [windowSize / chunkSize]bool // chunks whose pages are all present
	// covers counts the regions that cover all of a chunk. While there is one, the process
	// keeps the chunk's pages; afterwards it takes them out of the file.
	covers [windowSize / chunkSize]int32
}

// NewSpace makes the space of a process, in a memfd of its own. quota limits the bytes that the
// process may register; 0 means three quarters of the machine's memory. A limit is needed because
// registered pages are rarely swapped out. With a real NIC, RLIMIT_MEMLOCK limits locked pages.
func NewSpace(quota uint64) (*Space, error) {
	m, err := NewMemfd()
	if err != nil {
		return nil, err
	}
	return NewSpaceIn(m, quota), nil
}

// NewSpaceIn makes a space whose shared memory lies in b, which it closes.
func NewSpaceIn(b Backing, quota uint64) *Space {
	if quota == 0 {
		quota = defaultQuota()
	}
	return &Space{backing: b, windows: make(map[windowKey]*window), files: make(map[fileKey]*SharedFile), regions: make(map[uint64]*Region), quota: quota}
}

// File is the memfd, to be passed to the process; nil if the memory lies in something else.
func (s *Space) File() *os.File {
	if m, ok := s.backing.(*Memfd); ok {
		return m.File()
	}
	return nil
}

// Mapped is how many bytes live regions cover.
func (s *Space) Mapped() uint64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.mapped
}

// Close forgets the backing. Regions that still live keep their windows.
func (s *Space) Close() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.closed {
		s.closed = true
		s.charges.end(s.mapped)
		s.backing.Close()
		if s.foreign != nil {
			s.foreign.Close()
		}
		if s.mappings != nil {
			s.mappings.Close()
		}
	}
}

// SetMappings gives the process's mappings to s, which closes them. It is called before the
// first region is mapped. Without it shared memory is foreign.
func (s *Space) SetMappings(m *Mappings) { s.mappings = m }

// Contains reports whether an address of the daemon lies in one of s's windows.
func (s *Space) Contains(addr uintptr) bool {
	if d, ok := s.backing.(Direct); ok {
		return d.Contains(addr)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, w := range s.windows {
		if Within(addr, w.mem) {
			return true
		}
	}
	return false
}

// hold maps a window, of f where it is not nil, or counts one more user of it.
// s.mu is held.
func (s *Space) hold(k windowKey, f *SharedFile) (*window, error) {
	if w := s.windows[k]; w != nil {
		w.refs++
		return w, nil
	}
	if s.closed {
		return nil, syscall.EIO
	}
	if len(s.windows) >= maxWindows {
		return nil, syscall.ENOMEM
	}
	w := &window{key: k, of: s.backing, file: f, base: k.n << windowBits, refs: 1}
	end := w.base + windowSize
	if f == nil {
		end = min(end, s.backing.Size())
	} else {
		w.of, w.base, end = f, max(w.base, k.lo), min(end, k.hi)
	}
	if err := s.charges.account.Charge(w.bill()); err != nil {
		return nil, err
	}
	var err error
	if w.mem, err = w.of.Map(w.base, int(end-w.base)); err != nil {
		s.charges.account.Refund(w.bill())
		return nil, err
	}
	s.windows[k] = w
	if f != nil {
		f.refs++
	}
	return w, nil
}

// cover counts one region more (by 1) or less (by -1) that covers [lo, hi) of w. s.mu is
// held.
func (w *window) cover(lo, hi uint64, by int32) {
	for chunk := (lo + chunkSize - 1) / chunkSize; (chunk+1)*chunkSize <= hi; chunk++ {
		w.covers[chunk] += by
		if w.covers[chunk] == 0 {
			w.filled[chunk] = false
		}
	}
}

// drop releases one reference to a window. Unmapping a populated gibibyte takes milliseconds, so
// another goroutine does it. A wait for writers includes the unmapping of shared memory, because its
// owner cannot seal or unmount it before.
func (s *Space) drop(k windowKey) {
	w := s.windows[k]
	if w.refs--; w.refs > 0 {
		return
	}
	delete(s.windows, k)
	account := s.charges.account
	if w.file == nil {
		go func() {
			w.of.Unmap(w.mem)
			account.Refund(w.bill())
		}()
		return
	}
	last := s.unref(w.file)
	entry := s.enter()
	go func() {
		defer s.leave(entry)
		w.of.Unmap(w.mem)
		if last {
			w.file.close()
		}
		account.Refund(w.bill())
	}()
}

// populate makes the pages of mem present. mem is at an offset of the backing, in one window that
// the caller holds. Pages that the process has not allocated are left out, because they would be
// charged to the daemon, and a process can name any number of them. populate returns their bytes.
// They are allocated by a fault at the first write. Chunks known to be present are left out, too:
// the kernel takes 10 ms to check 65536 present pages. If a process has punched them out although
// they are registered, they come back by a fault.
func (s *Space) populate(w *window, offset uint64, mem []byte) (holes uint64, err error) {
	n, off := offset>>windowBits, offset&(windowSize-1)
	advice := unix.MADV_POPULATE_WRITE
	if w.file != nil && !w.file.writable {
		advice = unix.MADV_POPULATE_READ
	}
	solid := uint64(0) // up to here the process has made every page
	for len(mem) > 0 {
		chunk := off / chunkSize
		size := min((chunk+1)*chunkSize-off, uint64(len(mem)))
		s.mu.Lock()
		filled := w.filled[chunk]
		s.mu.Unlock()
		at := n<<windowBits + off
		if !filled && at+size > solid {
			// The kernel walks every page up to the hole, so it is asked once a run
			// and not once a chunk.
			solid = w.of.Hole(at)
		}
		if !filled && at+size <= solid {
			// Round out to pages, which stay inside the window.
			if err := advise(pageSpan(mem[:size:size], int(off%pageSize)), advice); err != nil {
				return holes, err
			}
			if size == chunkSize {
				s.mu.Lock()
				w.filled[chunk] = true
				s.mu.Unlock()
			}
		} else if !filled {
			holes += at + size - max(solid, at)
		}
		mem, off = mem[size:], off+size
	}
	return holes, nil
}

// populate makes the pages of mem present and mapped in the daemon, so that the
// data path does not fault. The pages were made by the process already; a process
// that punched them out again gets fresh ones.
func populate(mem []byte) error { return advise(mem, unix.MADV_POPULATE_WRITE) }

// advise is populate, with MADV_POPULATE_READ for what may only be read.
func advise(mem []byte, advice int) error {
	if len(mem) == 0 {
		return nil
	}
	err := unix.Madvise(mem, advice)
	if err == unix.EINVAL { // before Linux 5.14: pages come by fault
		return nil
	}
	return err
}

// defaultQuota is three quarters of the machine's memory; 0, no bound, if that is
// unknown.
func defaultQuota() uint64 {
	var i unix.Sysinfo_t
	if unix.Sysinfo(&i) != nil {
		return 0
	}
	return uint64(i.Totalram) * uint64(i.Unit) / 4 * 3
}
