package vhostuser

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"sync/atomic"

	"golang.org/x/sys/unix"
)

// regionSize is the size of a region in a message: guest-physical address, size, address in the front end, offset in the file.
const regionSize = 32

// maxSlots limits the total number of regions (ADD_MEM_REG).
const maxSlots = 64

// maxRAM limits the end of a region in its file, and the total size of a guest's mapped regions. All guests share the daemon's address
// space.
const maxRAM = 1 << 42

// A Region is a mapped part of the guest's RAM. It is unmapped when its last user releases it.
type Region struct {
	Guest uint64 // guest-physical address of its first byte
	user  uint64 // address in the front end, by which it names rings
	bytes []byte // the RAM
	whole []byte // the mapping, which begins at offset 0 of the file
	holds atomic.Int32
	// file, inode and offset identify the memory. QEMU 7.2 sends a region once per queue pair: again counts the repetitions. Only Serve
	// uses it.
	file, inode, offset uint64
	again               int
	fd                  int // of the file, for the next daemon
	// unmapped is called when the region is unmapped; may be nil.
	unmapped func()
}

// parseRegion decodes a region of a message.
func parseRegion(b []byte) (guest, size, user, offset uint64, err error) {
	guest, size, user, offset = le.Uint64(b), le.Uint64(b[8:]), le.Uint64(b[16:]), le.Uint64(b[24:])
	if size == 0 || size > maxRAM || offset > maxRAM || offset+size > maxRAM || guest+size < guest || user+size < user {
		err = fmt.Errorf("a region of %#x bytes at %#x, offset %#x, cannot be", size, guest, offset)
	}
	return guest, size, user, offset, err
}

// isRAM reports whether a file is on tmpfs or hugetlbfs. Reading a file of another file system can block, for ever if the front end serves
// it (FUSE). So isRAM does not query the file system either: only those two support seals, and the kernel answers that.
func isRAM(fd int) bool {
	if _, err := unix.FcntlInt(uintptr(fd), unix.F_GET_SEALS, 0); err != nil {
		return false
	}
	var fs unix.Statfs_t
	return unix.Fstatfs(fd, &fs) == nil && (fs.Type == unix.TMPFS_MAGIC || fs.Type == unix.HUGETLBFS_MAGIC)
}

// newRegion maps a region; it keeps a duplicate of the descriptor.
func (d *Device) newRegion(b []byte, fd int) (_ *Region, err error) {
	guest, size, user, offset, err := parseRegion(b)
	if err != nil {
		return nil, err
	}
	if fd < 0 {
		return nil, fmt.Errorf("a region of guest memory came without its descriptor: start QEMU with memory that is shared (share=on)")
	}
	if !isRAM(fd) {
		return nil, errors.New("guest memory is no regular file on tmpfs or hugetlbfs: use memory-backend-memfd, or a mem-path that is on one of those")
	}
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return nil, err
	}
	// Memory past the end of a file cannot be read. A device file has no size and is not guest RAM.
	if st.Mode&unix.S_IFMT != unix.S_IFREG || uint64(st.Size) < offset+size {
		return nil, fmt.Errorf("a region of guest memory ends at %#x in a file of %#x bytes", offset+size, st.Size)
	}
	var unmapped func()
	if d.Map != nil {
		if unmapped, err = d.Map(offset + size); err != nil {
			return nil, fmt.Errorf("%#x bytes of guest memory may not be mapped: %w", offset+size, err)
		}
		defer func() {
			if err != nil {
				unmapped()
			}
		}()
	}
	// Map from offset 0: offsets into huge pages must be multiples of the page size.
	whole, err := unix.Mmap(fd, 0, int(offset+size), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED|unix.MAP_NORESERVE)
	if err != nil {
		// The length of a mapping of huge pages must be a multiple of the page size, too.
		if page := uint64(st.Blksize); page > 4096 && page&(page-1) == 0 {
			whole, err = unix.Mmap(fd, 0, int((offset+size+page-1)&^(page-1)), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED|unix.MAP_NORESERVE)
		}
		if err != nil {
			return nil, fmt.Errorf("guest memory cannot be mapped: %w", err)
		}
	}
	// Keep the guest's memory out of the daemon's core files.
	unix.Madvise(whole, unix.MADV_DONTDUMP)
	if fd, err = unix.FcntlInt(uintptr(fd), unix.F_DUPFD_CLOEXEC, 0); err != nil {
		unix.Munmap(whole)
		return nil, os.NewSyscallError("fcntl", err)
	}
	r := &Region{fd: fd, Guest: guest, user: user, bytes: whole[offset : offset+size : offset+size], whole: whole, unmapped: unmapped, file: st.Dev, inode: st.Ino, offset: offset}
	r.holds.Store(1)
	return r, nil
}

// same reports whether a message describes this region, with a descriptor of the same file.
func (r *Region) same(b []byte, fd int) bool {
	guest, size, user, offset, err := parseRegion(b)
	var st unix.Stat_t
	return err == nil && r.Guest == guest && uint64(len(r.bytes)) == size && r.user == user && r.offset == offset &&
		fd >= 0 && unix.Fstat(fd, &st) == nil && st.Dev == r.file && st.Ino == r.inode
}

// Bytes returns the region's memory. The guest can change it at any time. It is valid while the region is held.
func (r *Region) Bytes() []byte { return r.bytes }

// Hold keeps the region mapped until Release, even if the guest removes it. The caller must hold the region's Memory.
func (r *Region) Hold() { r.holds.Add(1) }

// Release reverts one Hold.
func (r *Region) Release() {
	if r.holds.Add(-1) == 0 {
		unix.Munmap(r.whole)
		unix.Close(r.fd)
		if r.unmapped != nil {
			r.unmapped()
		}
	}
}

// contains reports whether an address of this process lies in the region.
func (r *Region) contains(at uintptr) bool { return at-address(r.whole) < uintptr(len(r.whole)) }

func (r *Region) overlaps(o *Region) bool {
	return r.Guest < o.Guest+uint64(len(o.bytes)) && o.Guest < r.Guest+uint64(len(r.bytes))
}

// A Memory is an immutable table of a guest's regions at one moment. Its receiver must release it.
type Memory struct {
	regions []*Region // without overlaps
	holds   atomic.Int32
}

// NewMemory returns a Memory that takes over the holds of regions.
func NewMemory(regions []*Region) (*Memory, error) {
	mapped := 0
	for i, r := range regions {
		if mapped += len(r.whole); mapped > maxRAM {
			return nil, fmt.Errorf("a guest has more than %d TiB of memory", maxRAM>>40)
		}
		for _, o := range regions[:i] {
			if r.overlaps(o) {
				return nil, fmt.Errorf("two regions of guest memory overlap, at %#x and %#x", o.Guest, r.Guest)
			}
		}
	}
	m := &Memory{regions: regions}
	m.holds.Store(1)
	return m, nil
}

func (m *Memory) hold() *Memory {
	m.holds.Add(1)
	return m
}

// Release releases the Memory. Slices of it must not be used afterwards.
func (m *Memory) Release() {
	if m.holds.Add(-1) == 0 {
		for _, r := range m.regions {
			r.Release()
		}
	}
}

// Has reports whether m contains all regions of o: then a holder of m does not need o.
func (m *Memory) Has(o *Memory) bool {
	for _, r := range o.regions {
		if !slices.Contains(m.regions, r) {
			return false
		}
	}
	return true
}

// Regions returns all regions.
func (m *Memory) Regions() []*Region { return m.regions }

// Region returns the region that contains a guest-physical address; nil if the address is not in RAM.
func (m *Memory) Region(guest uint64) *Region {
	for _, r := range m.regions {
		if guest-r.Guest < uint64(len(r.bytes)) {
			return r
		}
	}
	return nil
}

// Slice returns memory at a guest-physical address: n bytes, or fewer if the region ends before. It returns nil if the address is not in
// RAM, or n is 0.
func (m *Memory) Slice(guest, n uint64) []byte {
	for _, r := range m.regions {
		if at := guest - r.Guest; at < uint64(len(r.bytes)) {
			n = min(n, uint64(len(r.bytes))-at)
			return r.bytes[at : at+n : at+n]
		}
	}
	return nil
}

// Contains reports whether an address of this process lies in the memory.
func (m *Memory) Contains(at uintptr) bool {
	return slices.ContainsFunc(m.regions, func(r *Region) bool { return r.contains(at) })
}

// atUser returns n bytes of memory at an address of the front end, or nil.
func (m *Memory) atUser(user, n uint64) []byte {
	for _, r := range m.regions {
		if at := user - r.user; at < uint64(len(r.bytes)) {
			if n > uint64(len(r.bytes))-at {
				return nil
			}
			return r.bytes[at : at+n : at+n]
		}
	}
	return nil
}
