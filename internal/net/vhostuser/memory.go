package vhostuser

import (
	"errors"
	"fmt"
	"slices"
	"sync/atomic"

	"golang.org/x/sys/unix"
)

// regionSize is how long a region is in a message: guest-physical address, size, address in the
// front end, offset in the file.
const regionSize = 32

// maxSlots bounds how many regions there may be in all (ADD_MEM_REG).
const maxSlots = 64

// maxRAM bounds the end of a region in its file, and what all regions of a guest have mapped. Addresses of the
// daemon are for many guests.
const maxRAM = 1 << 42

// A Region is a piece of the guest's RAM, which is mapped here. It is unmapped when nobody holds it.
type Region struct {
	Guest uint64 // guest-physical address of its first byte
	user  uint64 // where the front end has it, which is how it names rings
	bytes []byte // the RAM
	whole []byte // what was mapped: it begins where the file does
	holds atomic.Int32
	// file and offset are where it is. QEMU 7.2 tells of a region once for each pair of queues: again is how often it has
	// after the first time, and is touched by Serve only.
	file, inode, offset uint64
	again               int
	// unmapped hears of the end; nil: nobody does.
	unmapped func()
}

// parseRegion reads a region of a message.
func parseRegion(b []byte) (guest, size, user, offset uint64, err error) {
	guest, size, user, offset = le.Uint64(b), le.Uint64(b[8:]), le.Uint64(b[16:]), le.Uint64(b[24:])
	if size == 0 || size > maxRAM || offset > maxRAM || offset+size > maxRAM || guest+size < guest || user+size < user {
		err = fmt.Errorf("a region of %#x bytes at %#x, offset %#x, cannot be", size, guest, offset)
	}
	return guest, size, user, offset, err
}

// isRAM reports whether a file is memory: one on tmpfs or hugetlbfs. Who reads one of another file system waits for
// that, and it may be the front end's own (FUSE): the daemon would wait for ever. So it is not asked either: seals
// are the kernel's business, and only those two have them.
func isRAM(fd int) bool {
	if _, err := unix.FcntlInt(uintptr(fd), unix.F_GET_SEALS, 0); err != nil {
		return false
	}
	var fs unix.Statfs_t
	return unix.Fstatfs(fd, &fs) == nil && (fs.Type == unix.TMPFS_MAGIC || fs.Type == unix.HUGETLBFS_MAGIC)
}

// newRegion maps a region; the descriptor is no longer needed then.
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
	// Past a file's end there is nothing to be read. A device file has no size: none is guest RAM.
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
	// From the file's beginning, because offsets in huge pages are multiples of those.
	whole, err := unix.Mmap(fd, 0, int(offset+size), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED|unix.MAP_NORESERVE)
	if err != nil {
		// A length in huge pages is a multiple of those, too.
		if page := uint64(st.Blksize); page > 4096 && page&(page-1) == 0 {
			whole, err = unix.Mmap(fd, 0, int((offset+size+page-1)&^(page-1)), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED|unix.MAP_NORESERVE)
		}
		if err != nil {
			return nil, fmt.Errorf("guest memory cannot be mapped: %w", err)
		}
	}
	// A crash of the daemon is not to write the guest's memory to a core file.
	unix.Madvise(whole, unix.MADV_DONTDUMP)
	r := &Region{Guest: guest, user: user, bytes: whole[offset : offset+size : offset+size], whole: whole, unmapped: unmapped, file: st.Dev, inode: st.Ino, offset: offset}
	r.holds.Store(1)
	return r, nil
}

// same reports whether a message tells of the region, and the descriptor is of its file.
func (r *Region) same(b []byte, fd int) bool {
	guest, size, user, offset, err := parseRegion(b)
	var st unix.Stat_t
	return err == nil && r.Guest == guest && uint64(len(r.bytes)) == size && r.user == user && r.offset == offset &&
		fd >= 0 && unix.Fstat(fd, &st) == nil && st.Dev == r.file && st.Ino == r.inode
}

// Bytes returns the region's memory. It is shared with the guest, which changes it at any time. It is valid
// while the region is held.
func (r *Region) Bytes() []byte { return r.bytes }

// Hold keeps the region mapped until Release, also when the guest no longer has it. It is for those who
// hold the Memory that it is of.
func (r *Region) Hold() { r.holds.Add(1) }

// Release undoes one Hold.
func (r *Region) Release() {
	if r.holds.Add(-1) == 0 {
		unix.Munmap(r.whole)
		if r.unmapped != nil {
			r.unmapped()
		}
	}
}

func (r *Region) overlaps(o *Region) bool {
	return r.Guest < o.Guest+uint64(len(o.bytes)) && o.Guest < r.Guest+uint64(len(r.bytes))
}

// A Memory is a guest's RAM at one moment: a table of regions that does not change. Who has been given
// one releases it.
type Memory struct {
	regions []*Region // none overlaps another
	holds   atomic.Int32
}

// newMemory takes regions that its caller holds, which are the Memory's from now on.
func newMemory(regions []*Region) (*Memory, error) {
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

// Release lets go of it. Slices of it are not to be touched any more.
func (m *Memory) Release() {
	if m.holds.Add(-1) == 0 {
		for _, r := range m.regions {
			r.Release()
		}
	}
}

// Has reports whether all regions of o are m's, too: then who has m needs o no longer.
func (m *Memory) Has(o *Memory) bool {
	for _, r := range o.regions {
		if !slices.Contains(m.regions, r) {
			return false
		}
	}
	return true
}

// Regions returns all of them.
func (m *Memory) Regions() []*Region { return m.regions }

// Region returns the one that has a guest-physical address; nil: the address is not in RAM.
func (m *Memory) Region(guest uint64) *Region {
	for _, r := range m.regions {
		if guest-r.Guest < uint64(len(r.bytes)) {
			return r
		}
	}
	return nil
}

// Slice is memory at a guest-physical address: n bytes, or fewer if the region ends before. It is nil if the
// address is not in RAM, or n is 0.
func (m *Memory) Slice(guest, n uint64) []byte {
	for _, r := range m.regions {
		if at := guest - r.Guest; at < uint64(len(r.bytes)) {
			n = min(n, uint64(len(r.bytes))-at)
			return r.bytes[at : at+n : at+n]
		}
	}
	return nil
}

// Contains reports whether an address of ours lies in it.
func (m *Memory) Contains(at uintptr) bool {
	for _, r := range m.regions {
		if at-address(r.whole) < uintptr(len(r.whole)) {
			return true
		}
	}
	return false
}

// atUser is memory at an address of the front end: n bytes, or nil.
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
