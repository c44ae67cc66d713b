package memory

import (
	"fmt"
	"os"
	"slices"
	"syscall"

	"golang.org/x/sys/unix"

	"vrdma.dev/vrdma/internal/budget"
)

// A SpaceState is the state of a Space, in the format of package state. Descriptors travel beside it; a file is
// named by its index among them plus one, and 0 means that there is none.
type SpaceState struct {
	Quota    uint64            `cbor:"1,keyasint,omitempty"`
	Memfd    uint32            `cbor:"2,keyasint,omitempty"` // file of the backing; 0: another Backing
	Foreign  uint32            `cbor:"3,keyasint,omitempty"` // file: /proc/PID/mem
	Mappings *MappingsState    `cbor:"4,keyasint,omitempty"`
	Files    []SharedFileState `cbor:"5,keyasint,omitempty"`
	Regions  []RegionState     `cbor:"6,keyasint,omitempty"`
	Last     uint64            `cbor:"7,keyasint,omitempty"` // ID of the region made last
}

// MappingsState is the state of Mappings.
type MappingsState struct {
	List uint32 `cbor:"1,keyasint,omitempty"` // file: /proc/PID/maps
	Pid  int    `cbor:"2,keyasint,omitempty"`
	UID  int    `cbor:"3,keyasint,omitempty"`
	Auxv []byte `cbor:"4,keyasint,omitempty"`
}

// SharedFileState is the state of a SharedFile. A System V segment that the daemon has attached has no file: it is
// attached again, by its number.
type SharedFileState struct {
	File     uint32 `cbor:"1,keyasint,omitempty"`
	Device   uint64 `cbor:"2,keyasint,omitempty"`
	Inode    uint64 `cbor:"3,keyasint,omitempty"`
	Handle   []byte `cbor:"4,keyasint,omitempty"`
	Name     string `cbor:"5,keyasint,omitempty"` // of a segment
	Writable bool   `cbor:"6,keyasint,omitempty"`
	Alone    bool   `cbor:"7,keyasint,omitempty"` // it is equal to no other
}

// RegionState is the state of a Region. Pieces are lists with an element for each piece; a list that is missing has
// zeros only.
type RegionState struct {
	ID       uint64   `cbor:"1,keyasint,omitempty"`
	Start    uint64   `cbor:"2,keyasint,omitempty"`
	Length   uint64   `cbor:"3,keyasint,omitempty"`
	ReadOnly bool     `cbor:"4,keyasint,omitempty"`
	Own      uint64   `cbor:"5,keyasint,omitempty"` // Usage
	Shared   uint64   `cbor:"6,keyasint,omitempty"`
	Foreign  uint64   `cbor:"7,keyasint,omitempty"`
	Why      uint32   `cbor:"8,keyasint,omitempty"`
	Holes    uint64   `cbor:"9,keyasint,omitempty"`  // bytes charged as holes
	Kind     []byte   `cbor:"10,keyasint,omitempty"` // of each piece: an ExtentKind
	Size     []uint64 `cbor:"11,keyasint,omitempty"`
	At       []uint64 `cbor:"12,keyasint,omitempty"` // in the backing, or in the file
	File     []uint32 `cbor:"13,keyasint,omitempty"` // index in SpaceState.Files plus one; 0: not Shared
	Low      []uint64 `cbor:"14,keyasint,omitempty"` // bounds of the client's mapping in the file
	High     []uint64 `cbor:"15,keyasint,omitempty"`
	State    uint64   `cbor:"16,keyasint,omitempty"` // bytes of the daemon's heap that are charged
	Pin      uint32   `cbor:"17,keyasint,omitempty"` // of OnRelease
}

// ID is the region's number in its Space. It is the same after Thaw.
func (r *Region) ID() uint64 { return r.id }

// Region returns the live region with an ID; nil: there is none.
func (s *Space) Region(id uint64) *Region {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.regions[id]
}

// Freeze returns the state of s and the descriptors that belong to it, which the caller closes. It changes nothing.
// The caller has made sure that no region is made or released meanwhile, and that no Job writes.
func (s *Space) Freeze() (st SpaceState, files []*os.File, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	defer func() {
		if err != nil {
			for _, f := range files {
				f.Close()
			}
			st, files = SpaceState{}, nil
		}
	}()
	add := func(fd int, name string) (uint32, error) {
		d, err := unix.FcntlInt(uintptr(fd), unix.F_DUPFD_CLOEXEC, 0)
		if err != nil {
			return 0, fmt.Errorf("copy the descriptor of %s: %w", name, err)
		}
		files = append(files, os.NewFile(uintptr(d), name))
		return uint32(len(files)), nil
	}
	addFile := func(f *os.File) (n uint32, err error) {
		c, err := f.SyscallConn()
		if err != nil {
			return 0, err
		}
		if e := c.Control(func(fd uintptr) { n, err = add(int(fd), f.Name()) }); e != nil {
			return 0, e
		}
		return n, err
	}
	st = SpaceState{Quota: s.quota, Last: s.last}
	if s.closed {
		return st, files, os.ErrClosed
	}
	if m, ok := s.backing.(*Memfd); ok {
		if st.Memfd, err = addFile(m.file); err != nil {
			return st, files, err
		}
	}
	if s.foreign != nil {
		f, ok := s.foreign.(*os.File)
		if !ok {
			return st, files, fmt.Errorf("foreign memory of type %T has no descriptor", s.foreign)
		}
		if st.Foreign, err = addFile(f); err != nil {
			return st, files, err
		}
	}
	if m := s.mappings; m != nil {
		st.Mappings = &MappingsState{Pid: m.pid, UID: m.uid, Auxv: slices.Clone(m.auxv)}
		if st.Mappings.List, err = addFile(m.list); err != nil {
			return st, files, err
		}
	}
	index := make(map[*SharedFile]uint32)
	for _, r := range s.regions {
		for i := range r.pieces {
			w := r.pieces[i].win
			if w == nil || w.file == nil || index[w.file] != 0 {
				continue
			}
			f := w.file
			fs := SharedFileState{Device: f.id.device, Inode: f.id.ino, Handle: []byte(f.id.handle), Name: f.name, Writable: f.writable, Alone: f.id.alone != nil}
			if f.segment == nil {
				if fs.File, err = add(f.file, "shared memory"); err != nil {
					return st, files, err
				}
			}
			st.Files = append(st.Files, fs)
			index[f] = uint32(len(st.Files))
		}
		st.Regions = append(st.Regions, r.freeze(index))
	}
	return st, files, nil
}

// freeze returns the state of r. s.mu is held.
func (r *Region) freeze(index map[*SharedFile]uint32) RegionState {
	st := RegionState{
		ID: r.id, Start: r.start, Length: r.length, ReadOnly: !r.writable,
		Own: r.usage.Own, Shared: r.usage.Shared, Foreign: r.usage.Foreign, Why: r.usage.Why, Holes: r.bill[budget.Holes], State: r.bill[budget.State],
		Pin: r.pin,
	}
	n := len(r.pieces)
	st.Kind, st.Size, st.At = make([]byte, n), make([]uint64, n), make([]uint64, n)
	for i := range r.pieces {
		p := &r.pieces[i]
		st.Size[i], st.At[i] = p.n, p.at
		switch {
		case p.mem == nil:
			st.Kind[i] = byte(Foreign)
		case p.win == nil || p.win.file == nil:
			st.Kind[i] = byte(Own)
		default:
			st.Kind[i] = byte(Shared)
			if st.File == nil {
				st.File, st.Low, st.High = make([]uint32, n), make([]uint64, n), make([]uint64, n)
			}
			st.File[i], st.Low[i], st.High[i] = index[p.win.file], p.win.key.lo, p.win.key.hi
		}
	}
	return st
}

// ThawOptions are what a Space needs beside its state.
type ThawOptions struct {
	// Backing is used if the state has no memfd.
	Backing Backing
	// Account is charged for what the space has; nil: nothing is charged.
	Account *budget.Account
	// Released returns what is called when a region with a pin is released (Region.OnRelease); nil: nothing is.
	Released func(pin uint32) func()
}

// Thaw makes the Space whose state is st, with its regions (Space.Region). It takes over the files, also if it
// fails. Pages are not populated: they come by fault, or with Populate.
func Thaw(st *SpaceState, files []*os.File, o ThawOptions) (*Space, error) {
	t := &thawing{files: files, o: o}
	defer t.close()
	s, err := t.space(st)
	if err != nil {
		return nil, fmt.Errorf("restore registered memory: %w", err)
	}
	return s, nil
}

// thawing is a Space that is being restored.
type thawing struct {
	files  []*os.File // nil: taken
	shared []*SharedFile
	s      *Space
	o      ThawOptions
}

// take takes a file; nil for 0.
func (t *thawing) take(n uint32) (*os.File, error) {
	if n == 0 {
		return nil, nil
	}
	if int64(n) > int64(len(t.files)) || t.files[n-1] == nil {
		return nil, fmt.Errorf("file %d of %d is not there", n, len(t.files))
	}
	f := t.files[n-1]
	t.files[n-1] = nil
	return f, nil
}

// close closes what was not used.
func (t *thawing) close() {
	for _, f := range t.files {
		if f != nil {
			f.Close()
		}
	}
}

func (t *thawing) space(st *SpaceState) (s *Space, err error) {
	b := t.o.Backing
	if f, err := t.take(st.Memfd); err != nil {
		return nil, err
	} else if f != nil {
		if b, err = memfdOf(f); err != nil {
			f.Close()
			return nil, err
		}
	}
	if b == nil {
		return nil, fmt.Errorf("there is no backing")
	}
	s = NewSpaceIn(b, st.Quota)
	s.quota, s.last, s.charges.account = st.Quota, st.Last, t.o.Account
	t.s = s
	defer func() {
		if err != nil {
			for _, r := range s.regions {
				r.Release()
			}
			s.Close()
			s = nil
		}
	}()
	if f, err := t.take(st.Foreign); err != nil {
		return s, err
	} else if f != nil {
		s.foreign = f
	}
	if m := st.Mappings; m != nil {
		f, err := t.take(m.List)
		if err != nil {
			return s, err
		}
		if f == nil {
			return s, fmt.Errorf("the list of mappings has no file")
		}
		s.mappings = &Mappings{pid: m.Pid, uid: m.UID, auxv: slices.Clone(m.Auxv), list: f}
	}
	defer func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.discard(t.shared)
	}()
	for i := range st.Files {
		f, err := t.sharedFile(&st.Files[i])
		if err != nil {
			return s, err
		}
		t.shared = append(t.shared, f)
	}
	s.mu.Lock()
	for i := range st.Regions {
		if err = t.region(&st.Regions[i]); err != nil {
			err = fmt.Errorf("region %d: %w", st.Regions[i].ID, err)
			break
		}
	}
	if err == nil {
		err = s.recount()
	}
	s.mu.Unlock()
	return s, err
}

// memfdOf checks that f is a memfd as NewMemfd makes it.
func memfdOf(f *os.File) (*Memfd, error) {
	var st unix.Stat_t
	if err := unix.Fstat(int(f.Fd()), &st); err != nil {
		return nil, err
	}
	seals, err := unix.FcntlInt(f.Fd(), unix.F_GET_SEALS, 0)
	const want = unix.F_SEAL_SHRINK | unix.F_SEAL_GROW
	if err != nil || seals&want != want || st.Size != 1<<spaceBits {
		return nil, fmt.Errorf("the file of %d bytes is not a memfd for registered memory", st.Size)
	}
	return &Memfd{f}, nil
}

// sharedFile restores a shared file. A segment that cannot be attached again is nil: its bytes are foreign then.
func (t *thawing) sharedFile(st *SharedFileState) (*SharedFile, error) {
	f, err := t.take(st.File)
	if err != nil {
		return nil, err
	}
	v := mapping{device: st.Device, ino: st.Inode, name: st.Name, prot: ProtRead, shared: true}
	if st.Writable {
		v.prot |= ProtWrite
	}
	if f == nil {
		if t.s.mappings == nil {
			return &SharedFile{file: -1}, nil
		}
		sf, err := t.s.mappings.attach(&v)
		if err != nil {
			return &SharedFile{file: -1}, nil
		}
		return sf, nil
	}
	defer f.Close()
	fd, err := unix.FcntlInt(f.Fd(), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	sf, err := newSharedFile(fd, &v)
	if err != nil {
		unix.Close(fd)
		return nil, fmt.Errorf("shared memory: %w", err)
	}
	if sf.id.handle != string(st.Handle) && !st.Alone {
		unix.Close(fd)
		return nil, fmt.Errorf("shared memory is another file: %w", syscall.ESTALE)
	}
	if st.Alone {
		sf.id.alone = sf
	}
	return sf, nil
}

// region restores a region. s.mu is held.
func (t *thawing) region(st *RegionState) error {
	s := t.s
	r := &Region{
		space: s, id: st.ID, start: st.Start, length: st.Length, writable: !st.ReadOnly,
		usage: Usage{Own: st.Own, Shared: st.Shared, Foreign: st.Foreign, Why: st.Why},
	}
	n := len(st.Kind)
	if len(st.Size) != n || len(st.At) != n || st.File != nil && (len(st.File) != n || len(st.Low) != n || len(st.High) != n) {
		return fmt.Errorf("lists of %d, %d, %d, %d, %d and %d pieces", n, len(st.Size), len(st.At), len(st.File), len(st.Low), len(st.High))
	}
	if st.ID == 0 || st.ID > s.last || s.regions[st.ID] != nil || st.Start+st.Length < st.Start || st.Start+st.Length > 1<<63 {
		return fmt.Errorf("%d bytes at %#x, of %d regions", st.Length, st.Start, s.last)
	}
	if s.full(st.Length) {
		return syscall.ENOMEM
	}
	s.mapped += r.length
	s.regions[r.id] = r // from now on Release undoes it
	if st.Pin != 0 && t.o.Released != nil {
		r.OnRelease(st.Pin, t.o.Released(st.Pin))
	}
	bill := budget.Bill{budget.State: max(st.State, uint64(n)*pieceState), budget.Holes: st.Holes}
	if err := s.charges.account.Charge(bill); err != nil {
		return err
	}
	r.bill = bill
	off := uint64(0)
	for i := range n {
		size := st.Size[i]
		if size == 0 || size > st.Length-off {
			return fmt.Errorf("a piece of %d bytes at %d of %d", size, off, st.Length)
		}
		if err := t.piece(r, st, i, off); err != nil {
			return err
		}
		off += size
	}
	if off != st.Length {
		return fmt.Errorf("pieces of %d bytes in %d", off, st.Length)
	}
	return nil
}

// piece restores piece i of a region, at off.
func (t *thawing) piece(r *Region, st *RegionState, i int, off uint64) error {
	s, size, at := t.s, st.Size[i], st.At[i]
	foreign := func() error {
		if s.foreign == nil {
			return syscall.EPERM
		}
		r.pieces = append(r.pieces, regionPiece{off: off, n: size})
		return nil
	}
	switch ExtentKind(st.Kind[i]) {
	case Foreign:
		return foreign()
	case Own:
		if all := s.backing.Size(); size > all || at > all-size {
			return fmt.Errorf("%d bytes at %#x of a backing of %d", size, at, all)
		}
		if d, ok := s.backing.(Direct); ok {
			mem := d.Slice(at, size)
			if mem == nil {
				return errNotMemory
			}
			r.pieces = append(r.pieces, regionPiece{off: off, n: size, at: at, mem: mem})
			return nil
		}
		return t.window(r, windowKey{n: at >> windowBits}, nil, off, at, size)
	case Shared:
		if st.File == nil || st.File[i] == 0 || int64(st.File[i]) > int64(len(t.shared)) {
			return fmt.Errorf("a piece of no file")
		}
		f := t.shared[st.File[i]-1]
		if f.file < 0 && f.segment == nil { // see sharedFile
			r.usage.Shared -= min(size, r.usage.Shared)
			r.usage.Foreign += size
			r.usage.Why |= 1 << whyMappings
			return foreign()
		}
		lo, hi := st.Low[i], st.High[i]
		if lo%pageSize != 0 || hi%pageSize != 0 || lo > at || hi > 1<<62 || at > hi || size > hi-at {
			return fmt.Errorf("%d bytes at %#x outside of [%#x, %#x)", size, at, lo, hi)
		}
		f = s.canonical(f)
		return t.window(r, windowKey{n: at >> windowBits, file: f, lo: lo, hi: hi}, f, off, at, size)
	}
	return fmt.Errorf("a piece of kind %d", st.Kind[i])
}

// window restores a piece that lies in one window.
func (t *thawing) window(r *Region, k windowKey, f *SharedFile, off, at, size uint64) error {
	if at>>windowBits != (at+size-1)>>windowBits {
		return fmt.Errorf("%d bytes at %#x do not lie in a window", size, at)
	}
	_, err := r.addWindow(k, f, off, at, at+size)
	return err
}

// Populate makes the pages of all regions present, as Map does for a new one. It may take long, so a goroutine
// runs it after Thaw; regions may be released meanwhile.
func (s *Space) Populate() {
	if _, ok := s.backing.(Direct); ok {
		return // the machine has its pages
	}
	s.mu.Lock()
	ids := make([]uint64, 0, len(s.regions))
	for id := range s.regions {
		ids = append(ids, id)
	}
	s.mu.Unlock()
	for _, id := range ids {
		for i := 0; s.populatePiece(id, i); i++ {
		}
	}
}

// populatePiece populates piece i of a region. It returns false if there is none.
func (s *Space) populatePiece(id uint64, i int) bool {
	s.mu.Lock()
	r := s.regions[id]
	if s.closed || r == nil || i >= len(r.pieces) {
		s.mu.Unlock()
		return false
	}
	p := r.pieces[i]
	if p.win == nil {
		s.mu.Unlock()
		return true
	}
	p.win.refs++ // the region may be released meanwhile
	s.mu.Unlock()
	s.populate(p.win, p.at, p.mem) // after an error the pages come by fault
	s.mu.Lock()
	defer s.mu.Unlock()
	s.drop(p.win.key)
	return true
}
