package memory

import (
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

// A Backing is what the bytes of Own extents lie in. An extent names its offset there;
// addresses of the client mean nothing to it. Its size is fixed.
//
// A process has a Memfd, of which it maps pieces at offset = address. The memory of a virtual
// machine is another (Direct): an offset is a guest-physical address there, and a region has
// many extents.
type Backing interface {
	// Size is where offsets end, a multiple of the page size.
	Size() uint64
	// Map maps size bytes at an offset into the daemon, and Unmap undoes it. Both are
	// page-aligned.
	Map(offset uint64, size int) ([]byte, error)
	Unmap(mem []byte)
	// Used is how many bytes there are pages for.
	Used() (uint64, error)
	// Hole returns the offset of the first page at or after offset that is not allocated, or
	// offset itself if that is not known.
	Hole(offset uint64) uint64
	// Close ends the use of the backing: Map is not called any more. Existing mappings stay.
	Close() error
}

// A Memfd is the backing that a process shares with the daemon: a sparse file as large as an
// address space, so that the process maps its pages at offset = address. The daemon makes
// and seals it: a client's own could be truncated under our feet.
type Memfd struct{ file *os.File }

// NewMemfd makes an empty one.
func NewMemfd() (*Memfd, error) {
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
	return &Memfd{f}, nil
}

// File is the memfd itself, to be passed to the process.
func (m *Memfd) File() *os.File { return m.file }

// Size implements Backing.
func (m *Memfd) Size() uint64 { return 1 << spaceBits }

// Map implements Backing.
func (m *Memfd) Map(offset uint64, size int) ([]byte, error) {
	return unix.Mmap(int(m.file.Fd()), int64(offset), size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED|unix.MAP_NORESERVE)
}

// Unmap implements Backing.
func (m *Memfd) Unmap(mem []byte) { unix.Munmap(mem) }

// Used implements Backing.
func (m *Memfd) Used() (uint64, error) {
	var st unix.Stat_t
	err := unix.Fstat(int(m.file.Fd()), &st)
	return uint64(st.Blocks) * 512, err
}

// Hole implements Backing.
func (m *Memfd) Hole(offset uint64) uint64 {
	hole, err := unix.Seek(int(m.file.Fd()), int64(offset), unix.SEEK_HOLE)
	if err != nil {
		return offset
	}
	return uint64(hole)
}

// Clear takes every page out. The process must not live any more: they are its heap.
func (m *Memfd) Clear() error {
	err := unix.Fallocate(int(m.file.Fd()), unix.FALLOC_FL_PUNCH_HOLE|unix.FALLOC_FL_KEEP_SIZE, 0, 1<<spaceBits)
	if err != nil {
		return fmt.Errorf("empty the memfd for registered memory: %w", err)
	}
	return nil
}

// Close implements Backing.
func (m *Memfd) Close() error { return m.file.Close() }
