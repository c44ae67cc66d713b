package memory

import (
	"fmt"
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

// A Space is the registered memory of one process.
type Space struct {
	pid     int
	file    *os.File
	foreign Remote // nil: we may not
	writers writers
	// Aside runs what may be held up by the process's memory, somewhere where that does no
	// harm; nil: in place.
	Aside func(func() error) error

	mu      sync.Mutex
	windows map[uint64]*window // by address >> windowBits
	mapped  uint64             // bytes of regions that live, for the quota
	quota   uint64
	closed  bool
	charges charges
}

// A window is one aligned gibibyte of the memfd, mapped while a region needs it.
type window struct {
	mem    []byte
	refs   int
	filled [windowSize / chunkSize]bool // chunks whose pages are all present
	// covers counts the regions that cover all of a chunk. While there is one, the process
	// keeps the chunk's pages; afterwards it takes them out of the file.
	covers [windowSize / chunkSize]int32
}

// NewSpace makes the memfd for process pid. quota bounds the bytes that it may
// register; 0 means three quarters of the machine's memory: like locked pages, which
// RLIMIT_MEMLOCK bounds for a real NIC, registered pages cannot be swapped out well.
func NewSpace(pid int, quota uint64) (*Space, error) {
	fd, err := unix.MemfdCreate("vrdma-memory", unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING)
	if err != nil {
		return nil, fmt.Errorf("memfd for registered memory: %w", err)
	}
	f := os.NewFile(uintptr(fd), "vrdma-memory")
	// The length of a file is at most MAX_LFS_FILESIZE; 2^47 is far below.
	if err := unix.Ftruncate(fd, 1<<spaceBits); err != nil {
		f.Close()
		return nil, fmt.Errorf("size the memfd for registered memory to 2^%d bytes: %w", spaceBits, err)
	}
	// Without these seals a client's ftruncate would give us SIGBUS.
	if _, err := unix.FcntlInt(f.Fd(), unix.F_ADD_SEALS, unix.F_SEAL_SHRINK|unix.F_SEAL_GROW|unix.F_SEAL_SEAL); err != nil {
		f.Close()
		return nil, fmt.Errorf("seal the memfd for registered memory: %w", err)
	}
	if quota == 0 {
		quota = defaultQuota()
	}
	return &Space{pid: pid, file: f, windows: make(map[uint64]*window), quota: quota}, nil
}

// File is the memfd, to be passed to the process.
func (s *Space) File() *os.File { return s.file }

// Pid is the process, as the daemon sees it.
func (s *Space) Pid() int { return s.pid }

// Mapped is how many bytes live regions cover.
func (s *Space) Mapped() uint64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.mapped
}

// Close forgets the memfd. Regions that still live keep their windows.
func (s *Space) Close() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.closed {
		s.closed = true
		s.charges.end(s.mapped)
		s.file.Close()
		if s.foreign != nil {
			s.foreign.Close()
		}
	}
}

// Contains reports whether an address of the daemon lies in one of s's windows.
func (s *Space) Contains(addr uintptr) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, w := range s.windows {
		if Within(addr, w.mem) {
			return true
		}
	}
	return false
}

// hold maps the window with number n, or counts one more user of it.
// s.mu is held.
func (s *Space) hold(n uint64) (*window, error) {
	if w := s.windows[n]; w != nil {
		w.refs++
		return w, nil
	}
	if s.closed {
		return nil, syscall.EIO
	}
	if len(s.windows) >= maxWindows {
		return nil, syscall.ENOMEM
	}
	if err := s.charges.account.Charge(windowBill); err != nil {
		return nil, err
	}
	mem, err := unix.Mmap(int(s.file.Fd()), int64(n<<windowBits), windowSize,
		unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED|unix.MAP_NORESERVE)
	if err != nil {
		s.charges.account.Refund(windowBill)
		return nil, err
	}
	w := &window{mem: mem, refs: 1}
	s.windows[n] = w
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

// drop gives up one hold of window n. Unmapping a populated gibibyte takes
// milliseconds, so it happens beside the caller.
func (s *Space) drop(n uint64) {
	w := s.windows[n]
	if w.refs--; w.refs > 0 {
		return
	}
	delete(s.windows, n)
	account := s.charges.account
	go func() {
		unix.Munmap(w.mem)
		account.Refund(windowBill)
	}()
}

// populate makes the pages under mem present, which lies at addr of one window that
// the caller holds, and returns how many bytes it left out, because the process has not
// made their pages. Chunks that are remembered as filled are left out: looking at 65536
// present pages takes the kernel 10 ms. If a process has punched them out although they are
// registered, they come back by fault.
func (s *Space) populate(addr uint64, mem []byte) (holes uint64, err error) {
	n, off := addr>>windowBits, addr&(windowSize-1)
	s.mu.Lock()
	w := s.windows[n]
	s.mu.Unlock()
	solid := uint64(0) // up to here the process has made every page
	for len(mem) > 0 {
		chunk := off / chunkSize
		size := min((chunk+1)*chunkSize-off, uint64(len(mem)))
		s.mu.Lock()
		filled := w.filled[chunk]
		s.mu.Unlock()
		at := n<<windowBits + off
		if !filled && at+size > solid {
			solid = s.hole(at)
		}
		if !filled && at+size <= solid {
			// Round out to pages, which stay inside the window.
			if err := populate(pageSpan(mem[:size:size], int(off%pageSize))); err != nil {
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

// hole is where the first page at or after addr is that the process has not made.
// Such pages would be charged to us, and a process can name any number of them: those
// come by fault, when somebody has written there. The kernel walks every page up to
// the hole, so it is asked once a run and not once a chunk.
func (s *Space) hole(addr uint64) uint64 {
	hole, err := unix.Seek(int(s.file.Fd()), int64(addr), unix.SEEK_HOLE)
	if err != nil {
		return addr
	}
	return uint64(hole)
}

// populate makes the pages of mem present and mapped in the daemon, so that the
// data path does not fault. The pages were made by the process already; a process
// that punched them out again gets fresh ones.
func populate(mem []byte) error {
	if len(mem) == 0 {
		return nil
	}
	err := unix.Madvise(mem, unix.MADV_POPULATE_WRITE)
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
