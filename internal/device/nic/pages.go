package nic

import (
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

// Pages is the memory of an arena, as the daemon has it. For a process it is a memfd, which
// the process maps; of a virtual machine it is the machine's own memory, and a client
// that lives in the daemon has it as it is.
type Pages interface {
	// Bytes is all of it, mapped, zero at first. Its beginning is page-aligned.
	Bytes() []byte
	// Punch gives pages back to the system. They are zero afterwards.
	Punch(offset, size uint64)
	Close()
}

// Pages that do not have all of their memory from the beginning implement Grower: those of a
// virtual machine, where every page of an arena is a page of the machine.
type Grower interface {
	// Ready is the offset up to which there is memory. That includes at least the doorbell page and
	// the arm words.
	Ready() uint64
	// Grow adds at least size bytes of memory at the end. It may take long, and is not called on
	// the loop.
	Grow(size uint64) error
}

// A ringFile is the memfd of an arena.
type ringFile struct {
	file *os.File
	mem  []byte
}

// newRingFile makes and maps a memfd. It is sealed: a client that truncates it would give us
// SIGBUS.
func newRingFile() (*ringFile, error) {
	fd, err := unix.MemfdCreate("vrdma-uverbs", unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING)
	if err != nil {
		return nil, fmt.Errorf("memfd for rings: %w", err)
	}
	f := os.NewFile(uintptr(fd), "vrdma-uverbs")
	if err := unix.Ftruncate(fd, arenaSize); err != nil {
		f.Close()
		return nil, fmt.Errorf("size the memfd for rings: %w", err)
	}
	if _, err := unix.FcntlInt(f.Fd(), unix.F_ADD_SEALS, unix.F_SEAL_SHRINK|unix.F_SEAL_GROW|unix.F_SEAL_SEAL); err != nil {
		f.Close()
		return nil, fmt.Errorf("seal the memfd for rings: %w", err)
	}
	mem, err := unix.Mmap(fd, 0, arenaSize, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED|unix.MAP_NORESERVE)
	if err != nil {
		f.Close()
		return nil, fmt.Errorf("map the memfd for rings: %w", err)
	}
	return &ringFile{f, mem}, nil
}

func (r *ringFile) Bytes() []byte { return r.mem }

func (r *ringFile) Punch(offset, size uint64) {
	unix.Fallocate(int(r.file.Fd()), unix.FALLOC_FL_PUNCH_HOLE|unix.FALLOC_FL_KEEP_SIZE, int64(offset), int64(size))
}

// Populate allocates pages that are needed soon. Errors are ignored: a later access allocates the page.
func (r *ringFile) Populate(offset, size uint64) {
	unix.Madvise(r.mem[offset:offset+size], unix.MADV_POPULATE_WRITE)
}

func (r *ringFile) Close() {
	unix.Munmap(r.mem)
	r.file.Close()
}
