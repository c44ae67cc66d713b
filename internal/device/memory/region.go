package memory

import (
	"syscall"

	"vrdma.dev/vrdma/internal/budget"
)

// ExtentKind says how the daemon reaches an extent. The numbers are those of the
// channel protocol.
type ExtentKind uint8

const (
	Hole    ExtentKind = iota // nothing is mapped there
	Own                       // bytes of the client's backing
	Foreign                   // reached by copying
	Shared                    // memory that the client shares with others, and the daemon maps too
)

// Why an extent is foreign, of the numbers of the channel protocol.
const (
	whyFile     = 2
	whyMappings = 6
	whySpecial  = 8
	whyStalled  = 10
)

// Protection of an extent in the process.
const (
	ProtRead  = 1
	ProtWrite = 2
)

// An Extent is a run of the client's address space and where its bytes are: for an Own
// one, at Offset of the backing. (In a process's memfd that is the address again, because
// the shim maps it so; here nothing relies on it.) What a Shared one is of, the daemon finds
// out (Mappings).
type Extent struct {
	Start, Length uint64
	Kind          ExtentKind
	Prot          uint8
	Why           uint8 // it is foreign: a number of the channel protocol
	Offset        uint64
	Descriptor    int32 // Shared: the client's number of a descriptor of it, plus one; 0: none

	file   *SharedFile // Shared, and found
	bounds [2]uint64   // of the client's mapping, in the file
}

// A Region is registered memory: consecutive pieces of one client's address space.
type Region struct {
	space    *Space
	id       uint64 // among the space's
	start    uint64
	length   uint64
	writable bool
	pieces   []regionPiece // in order, without gaps
	held     []windowKey   // windows to drop
	usage    Usage
	bill     budget.Bill // what it was charged, apart from windows and Memory
	released func()      // nil: nobody wants to know
	pin      uint32      // of OnRelease
}

// errNotMemory is for an extent that names what is not memory of its backing.
const errNotMemory = syscall.EFAULT

// regionPiece covers [off, off+n) of a region.
type regionPiece struct {
	off uint64
	n   uint64
	at  uint64 // in the backing, or the shared file
	mem []byte // nil: foreign
	win *window
}

// A Usage says how the bytes of a region are reached, and why some are foreign: a bit for each
// reason of the channel protocol.
type Usage struct {
	Own, Shared, Foreign uint64
	Why                  uint32
}

// Add adds another region's.
func (u *Usage) Add(o Usage) {
	u.Own += o.Own
	u.Shared += o.Shared
	u.Foreign += o.Foreign
	u.Why |= o.Why
}

// Usage says how the region's bytes are reached.
func (r *Region) Usage() Usage { return r.usage }

// Aside is u of a region that is reached aside: all of it by copying.
func (u Usage) Aside() Usage {
	return Usage{Foreign: u.Own + u.Shared + u.Foreign, Why: u.Why | 1<<whyStalled}
}

// Map makes a region of the extents, which must cover [start, start+length) in order. It may take
// long, because it populates pages, and is safe to call from any goroutine. Its errors:
//
//   - EFAULT: the range has a hole;
//   - EINVAL: the extents do not fit the range;
//   - EPERM: the memory is foreign, and the daemon has no rights over the process;
//   - ENOMEM: the quota is exhausted;
//   - *budget.Error: the limit of the user is reached.
func (s *Space) Map(start, length uint64, extents []Extent) (*Region, error) {
	if start+length < start || start+length > 1<<63 {
		return nil, syscall.EINVAL
	}
	r := &Region{space: s, start: start, length: length, writable: true}
	at := start
	for _, e := range extents {
		if e.Start != at || e.Length > start+length-at {
			return nil, syscall.EINVAL
		}
		if e.Kind == Hole || e.Kind > Shared {
			return nil, syscall.EFAULT
		}
		if size := s.backing.Size(); e.Kind == Own && (e.Length > size || e.Offset > size-e.Length) {
			return nil, syscall.EFAULT
		}
		// Memory changes its kind at page borders only. Without this rule a client could
		// make every byte a piece of its own, and the loop would go through them.
		if e.Start != start && e.Start%pageSize != 0 {
			return nil, syscall.EINVAL
		}
		at += e.Length
	}
	if at != start+length {
		return nil, syscall.EFAULT
	}

	extents, files := s.resolve(extents)
	s.mu.Lock()
	if s.full(length) {
		s.discard(files)
		s.mu.Unlock()
		return nil, syscall.ENOMEM
	}
	s.mapped += length
	err := r.charge(extents)
	for _, e := range extents {
		if err != nil {
			break
		}
		if e.Prot&ProtWrite == 0 {
			r.writable = false
		}
		if err = r.add(e); err != nil {
			break
		}
	}
	s.discard(files)
	s.mu.Unlock()

	if err == nil {
		err = r.populate()
	}
	if err == nil {
		err = r.probe()
	}
	if err != nil {
		r.Release()
		return nil, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.last++
	r.id = s.last
	s.regions[r.id] = r
	return r, nil
}

// Room says whether Map would refuse so many bytes more for being too many: ENOMEM above the
// quota, a *budget.Error above what the user may have.
func (s *Space) Room(length uint64) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.full(length) {
		return syscall.ENOMEM
	}
	return s.charges.room(s.mapped + length)
}

// full reports whether length more would be above the quota. s.mu is held.
func (s *Space) full(length uint64) bool {
	return s.quota != 0 && (length > s.quota || s.mapped > s.quota-length)
}

// add appends an extent, cut at window borders. s.mu is held.
func (r *Region) add(e Extent) error {
	switch {
	case e.Kind == Foreign:
		r.addForeign(e)
		return nil
	case e.Kind == Shared:
		r.addShared(e)
		return nil
	}
	r.usage.Own += e.Length
	if d, ok := r.space.backing.(Direct); ok {
		return r.addDirect(d, e)
	}
	off := e.Start - r.start
	for at, end := e.Offset, e.Offset+e.Length; at < end; {
		n, err := r.addWindow(windowKey{n: at >> windowBits}, nil, off, at, end)
		if err != nil {
			return err
		}
		at, off = at+n, off+n
	}
	return nil
}

// addForeign appends a foreign extent.
func (r *Region) addForeign(e Extent) {
	if e.Length == 0 {
		return
	}
	r.usage.Foreign += e.Length
	r.usage.Why |= 1 << min(e.Why, 31)
	if last := r.last(); last != nil && last.mem == nil {
		last.n += e.Length
	} else {
		r.pieces = append(r.pieces, regionPiece{off: e.Start - r.start, n: e.Length})
	}
}

// addShared appends a shared extent. What cannot be mapped, for the space has too many windows
// or its user too many mappings, is foreign.
func (r *Region) addShared(e Extent) {
	f := r.space.canonical(e.file)
	for at, end := e.Offset, e.Offset+e.Length; at < end; {
		k := windowKey{n: at >> windowBits, file: f, lo: e.bounds[0], hi: e.bounds[1]}
		off := e.Start - r.start + at - e.Offset
		n, err := r.addWindow(k, f, off, at, end)
		if err != nil {
			r.addForeign(Extent{Start: r.start + off, Length: end - at, Why: whyMappings})
			return
		}
		r.usage.Shared += n
		at += n
	}
}

// addWindow appends what of [at, end) lies in the window k and returns how much that is.
func (r *Region) addWindow(k windowKey, f *SharedFile, off, at, end uint64) (uint64, error) {
	w, err := r.space.hold(k, f)
	if err != nil {
		return 0, err
	}
	r.held = append(r.held, k)
	lo := at & (windowSize - 1)
	hi := min(uint64(windowSize), lo+(end-at))
	from := at - w.base
	to := from + hi - lo
	r.pieces = append(r.pieces, regionPiece{off: off, n: hi - lo, at: at, mem: w.mem[from:to:to], win: w})
	w.cover(lo, hi, 1)
	return hi - lo, nil
}

// last is the last piece so far; nil if there is none.
func (r *Region) last() *regionPiece {
	if len(r.pieces) == 0 {
		return nil
	}
	return &r.pieces[len(r.pieces)-1]
}

// populate makes the region's pages present in the daemon, piece by piece, leaving
// out what an earlier region did already.
func (r *Region) populate() error {
	if _, ok := r.space.backing.(Direct); ok {
		return r.populateDirect()
	}
	var holes uint64
	for _, p := range r.pieces {
		if p.mem == nil {
			continue
		}
		n, err := r.space.populate(p.win, p.at, p.mem)
		if err != nil && p.win.file == nil {
			return syscall.ENOMEM
		} // else the owner makes the file shorter, or no huge page is free: it comes by fault
		holes += n
	}
	return r.chargeHoles(holes)
}

// probe makes sure that foreign memory can be reached at all: better EPERM now than
// a protection error in the middle of a transfer. ETIMEDOUT: the process's memory holds us up.
func (r *Region) probe() error {
	var addrs []uint64
	for _, p := range r.pieces {
		if p.mem == nil {
			addrs = append(addrs, r.start+p.off)
		}
	}
	if len(addrs) == 0 {
		return nil
	}
	s := r.space
	if s.foreign == nil {
		return syscall.EPERM
	}
	look := func() error { // it may outlive the region
		var b [1]byte
		for _, a := range addrs {
			if err := s.read(a, b[:]); err != nil {
				return err
			}
		}
		return nil
	}
	if s.Aside == nil {
		return look()
	}
	return s.Aside(look)
}

// Writable reports whether the process itself may write all of the region.
func (r *Region) Writable() bool { return r.writable }

// Length is the region's size in bytes.
func (r *Region) Length() uint64 { return r.length }

// Release gives the region's windows back. The caller has made sure that nobody
// reads or writes the region any more. Releasing twice is harmless.
func (r *Region) Release() {
	s := r.space
	if s == nil {
		return
	}
	r.space = nil
	s.mu.Lock()
	defer s.mu.Unlock()
	s.mapped -= r.length
	delete(s.regions, r.id)
	for _, p := range r.pieces {
		if p.win != nil {
			lo := p.at & (windowSize - 1)
			p.win.cover(lo, lo+p.n, -1)
		}
	}
	if s.charges.account != nil {
		// Pages that the daemon's copies have allocated stay allocated, and nothing may report them later.
		s.recount()
	}
	s.charges.account.Refund(r.bill)
	r.bill = budget.Bill{}
	for _, n := range r.held {
		s.drop(n)
	}
	r.held, r.pieces = nil, nil
	if r.released != nil {
		r.released()
	}
}

// Span appends the n bytes from offset off on to s. The caller has checked that
// they lie inside the region; what does not is left out, and ok is false.
func (r *Region) Span(off, n uint64, s *Span) (ok bool) { return r.Reach(off, n, s, false) }

// Reach is Span. If aside is set, all of it is foreign, also what is mapped: the loop may not
// touch it.
func (r *Region) Reach(off, n uint64, s *Span, aside bool) (ok bool) {
	if aside {
		return r.spanAside(off, n, s)
	}
	if n == 0 {
		return off <= r.length
	}
	if off >= r.length || n > r.length-off {
		return false
	}
	for i := r.find(off); i < len(r.pieces); i++ {
		p := &r.pieces[i]
		lo := off - p.off
		k := min(n, p.n-lo)
		if p.mem != nil {
			s.addMapped(r.space, r.start+off, p.mem[lo:lo+k])
		} else {
			s.AddForeign(r.space, r.start+off, int(k))
		}
		off += k
		if n -= k; n == 0 {
			return true
		}
	}
	return false
}

// spanAside is Reach. It is a function of its own so that Reach stays short.
//
//go:noinline
func (r *Region) spanAside(off, n uint64, s *Span) (ok bool) {
	if off > r.length || n > r.length-off {
		return false
	}
	for n > 0 {
		p := &r.pieces[r.find(off)]
		lo := off - p.off
		k := min(n, p.n-lo)
		if p.win != nil {
			s.addAside(r.space, r.start+off, p.win, p.mem[lo:lo+k])
		} else {
			s.AddForeign(r.space, r.start+off, int(k))
		}
		off, n = off+k, n-k
	}
	return true
}

// find is the index of the piece that off lies in; off is less than the region's length. A
// region of a virtual machine has a piece for each of its pages, so they are not walked.
func (r *Region) find(off uint64) int {
	lo, hi := 0, len(r.pieces)-1
	for lo < hi {
		if mid := int(uint(lo+hi+1) / 2); r.pieces[mid].off <= off {
			lo = mid
		} else {
			hi = mid - 1
		}
	}
	return lo
}
