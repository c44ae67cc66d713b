package memory

import (
	"errors"
	"slices"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"
)

// A SharedFile is memory that a client shares with others: a file of tmpfs or hugetlbfs, a
// memfd, shared anonymous memory, a segment of System V shared memory. The daemon maps it
// beside the client, which goes on as before. The client can make it shorter, punch holes in
// it and seal it, so the daemon expects faults there.
type SharedFile struct {
	id       fileID
	file     int    // -1: segment is all of it
	segment  []byte // attached by shmat
	name     string // of a segment, in a list of mappings
	writable bool
	refs     int // windows of a space, and regions that are being made; the space's mu guards it
}

// fileID tells files apart that are mapped. The number of an inode does not: segments of
// System V shared memory have inodes of their own numbering on the same device as memfds, and
// in each IPC namespace. The handle has the generation, which is random on tmpfs.
type fileID struct {
	device, ino uint64
	handle      string
	sysv        bool // by shmat: the number is of an IPC namespace
	alone       any  // not nil: it cannot be told apart, and is equal to nothing else
}

// File systems that keep their files in memory.
const (
	tmpfsMagic     = 0x01021994
	hugetlbfsMagic = 0x958458f6
)

// errNotInMemory: the file is on a disk, on FUSE or a device.
var errNotInMemory = errors.New("the file system does not keep its files in memory")

// inMemory checks that fd is the file of v, and a regular file of a file system in memory.
func inMemory(fd int, v *mapping) error {
	var fs unix.Statfs_t
	if err := unix.Fstatfs(fd, &fs); err != nil {
		return err
	}
	if fs.Type != tmpfsMagic && fs.Type != hugetlbfsMagic {
		return errNotInMemory
	}
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return err
	}
	if st.Mode&unix.S_IFMT != unix.S_IFREG {
		return errNotInMemory
	}
	if uint64(st.Dev) != v.device || st.Ino != v.ino {
		return syscall.ESTALE
	}
	return nil
}

// newSharedFile makes a SharedFile of a descriptor, which it keeps unless it fails.
func newSharedFile(fd int, v *mapping) (*SharedFile, error) {
	if err := inMemory(fd, v); err != nil {
		return nil, err
	}
	flags, err := unix.FcntlInt(uintptr(fd), unix.F_GETFL, 0)
	if err != nil {
		return nil, err
	}
	writable := v.prot&ProtWrite != 0 && flags&unix.O_ACCMODE == unix.O_RDWR
	f := &SharedFile{id: fileID{device: v.device, ino: v.ino}, file: fd, writable: writable}
	if h, _, err := unix.NameToHandleAt(fd, "", unix.AT_EMPTY_PATH); err == nil {
		f.id.handle = string(h.Bytes())
	} else if v.sysv() {
		f.id.alone = f
	}
	return f, nil
}

// Map implements source.
func (f *SharedFile) Map(offset uint64, size int) ([]byte, error) {
	if f.segment != nil {
		if size := uint64(size); offset > uint64(len(f.segment)) || size > uint64(len(f.segment))-offset {
			return nil, syscall.EINVAL
		}
		return f.segment[offset : offset+uint64(size) : offset+uint64(size)], nil
	}
	prot := unix.PROT_READ
	if f.writable {
		prot |= unix.PROT_WRITE
	}
	return unix.Mmap(f.file, int64(offset), size, prot, unix.MAP_SHARED|unix.MAP_NORESERVE)
}

// Unmap implements source.
func (f *SharedFile) Unmap(mem []byte) {
	if f.segment == nil {
		unix.Munmap(mem)
	}
}

// Hole implements source. What lies behind the end of the file is a hole.
func (f *SharedFile) Hole(offset uint64) uint64 {
	if f.segment != nil {
		return f.holeInSegment(offset)
	}
	hole, err := unix.Seek(f.file, int64(offset), unix.SEEK_HOLE)
	if err != nil {
		return offset
	}
	return uint64(hole)
}

// holeInSegment is Hole for a System V segment. It has no descriptor for lseek, so mincore is used.
func (f *SharedFile) holeInSegment(offset uint64) uint64 {
	var resident [512]byte
	for offset &^= pageSize - 1; offset < uint64(len(f.segment)); {
		n := min(uint64(len(f.segment))-offset, uint64(len(resident))*pageSize)
		if mincore(f.segment[offset:offset+n], resident[:]) != nil {
			return offset
		}
		for i := range n / pageSize {
			if resident[i]&1 == 0 {
				return offset + i*pageSize
			}
		}
		offset += n
	}
	return offset
}

// close closes the file or detaches the segment.
func (f *SharedFile) close() {
	if f.segment != nil {
		unix.SysvShmDetach(f.segment)
	} else {
		unix.Close(f.file)
	}
}

// canonical is the file that stands for f in the space: one that is the same and is mapped
// already. s.mu is held.
func (s *Space) canonical(f *SharedFile) *SharedFile {
	k := fileKey{f.id, f.writable}
	if known := s.files[k]; known != nil {
		return known
	}
	s.files[k] = f
	return f
}

// unref counts a window of f less and reports whether it was the last. s.mu is held.
func (s *Space) unref(f *SharedFile) (last bool) {
	if f.refs--; f.refs > 0 {
		return false
	}
	delete(s.files, fileKey{f.id, f.writable})
	return true
}

// discard closes those of the files that no window is of. s.mu is held.
func (s *Space) discard(files []*SharedFile) {
	for _, f := range files {
		if f.refs > 0 || f.file < 0 && f.segment == nil {
			continue
		}
		if k := (fileKey{f.id, f.writable}); s.files[k] == f {
			delete(s.files, k)
		}
		f.close()
	}
}

// resolve finds the files of Shared extents, and splits the extents where the process's mappings
// end. Extents that the daemon cannot map become Foreign. The caller has to discard the files.
func (s *Space) resolve(extents []Extent) (out []Extent, files []*SharedFile) {
	i := 0
	for i < len(extents) && extents[i].Kind != Shared {
		i++
	}
	if i == len(extents) {
		return extents, nil
	}
	r := &resolver{space: s, in: slices.Clone(extents)}
	err := error(nil)
	if s.mappings == nil {
		err = syscall.EPERM
	} else if s.Aside == nil {
		r.run()
	} else {
		err = s.Aside(r.run)
	}
	if out, files = r.take(); err == nil && out != nil {
		return out, files
	}
	for _, e := range r.in {
		out = append(out, e.foreign(whySpecial))
	}
	return out, nil
}

// foreign is e, foreign if it is Shared.
func (e Extent) foreign(why uint8) Extent {
	if e.Kind == Shared {
		e.Kind, e.Why, e.file = Foreign, why, nil
	}
	return e
}

// A resolver does resolve's work, and may outlive the call.
type resolver struct {
	space *Space
	in    []Extent

	mu    sync.Mutex
	over  bool // nobody waits for it any more
	out   []Extent
	files []*SharedFile
}

// take ends the waiting.
func (r *resolver) take() ([]Extent, []*SharedFile) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.over = true
	return r.out, r.files
}

func (r *resolver) run() error {
	var out []Extent
	var files []*SharedFile
	for _, e := range r.in {
		if e.Kind == Shared {
			out, files = r.space.mappings.resolve(e, out, files)
		} else {
			out = append(out, e)
		}
	}
	// What was opened by process number is of the address space, if that is still the process's.
	same := r.space.mappings.same()
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.over || !same {
		for _, f := range files {
			f.close()
		}
		return nil
	}
	r.out, r.files = out, files
	return nil
}

// resolve appends the parts of a Shared extent to out, and the files to files.
func (m *Mappings) resolve(e Extent, out []Extent, files []*SharedFile) ([]Extent, []*SharedFile) {
	for end := e.Start + e.Length; e.Start < end; e.Start += e.Length {
		e.Length = end - e.Start
		v, err := m.find(e.Start)
		if err != nil || !v.shared {
			return append(out, e.foreign(whySpecial)), files
		}
		e.Length = min(e.Length, v.end-e.Start)
		f, err := m.open(&v, int(e.Descriptor)-1)
		if err == nil && v.prot&ProtWrite != 0 && !f.writable {
			f.close()
			err = syscall.EACCES
		}
		if err != nil {
			out = append(out, e.foreign(whyFile))
			continue
		}
		files = append(files, f)
		e.file, e.Prot = f, e.Prot&v.prot
		e.Offset, e.bounds = v.offset+e.Start-v.start, [2]uint64{v.offset, v.offset + v.end - v.start}
		out = append(out, e)
		e.file = nil
	}
	return out, files
}
