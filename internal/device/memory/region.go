package memory

import (
	"syscall"

	"vrdma/internal/budget"
)

// ExtentKind says how the daemon reaches an extent. The numbers are those of the
// channel protocol.
type ExtentKind uint8

const (
	Hole    ExtentKind = iota // nothing is mapped there
	Shared                    // bytes of the client's backing
	Foreign                   // anything else
)

// Protection of an extent in the process.
const (
	ProtRead  = 1
	ProtWrite = 2
)

// An Extent is a run of the client's address space and where its bytes are: for a Shared
// one, at Offset of the backing. (In a process's memfd that is the address again, because
// the shim maps it so; here nothing relies on it.)
type Extent struct {
	Start, Length uint64
	Kind          ExtentKind
	Prot          uint8
	Offset        uint64
}

// A Region is registered memory: consecutive pieces of one client's address space.
type Region struct {
	space    *Space
	start    uint64
	length   uint64
	writable bool
	pieces   []regionPiece // in order, without gaps
	held     []uint64      // windows to drop
	bill     budget.Bill   // what it was charged, apart from windows and Memory
	released func()        // nil: nobody wants to know
}

// errNotMemory is for an extent that names what is not memory of its backing.
const errNotMemory = syscall.EFAULT

// regionPiece covers [off, off+n) of a region.
type regionPiece struct {
	off uint64
	n   uint64
	at  uint64 // in the backing
	mem []byte // nil: foreign
}

// Map makes a region of the extents, which must cover [start, start+length) in
// order. It returns EFAULT for a hole, ENOMEM above the quota, a *budget.Error above what
// its user may have, EPERM for foreign
// memory of a process that we have no rights over, and EINVAL for extents that do not
// fit the range. It may take long (pages are populated) and is
// safe to call from any goroutine.
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
		if e.Kind == Hole || e.Kind > Foreign {
			return nil, syscall.EFAULT
		}
		if size := s.backing.Size(); e.Kind == Shared && (e.Length > size || e.Offset > size-e.Length) {
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

	s.mu.Lock()
	if s.full(length) {
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
	if e.Kind == Foreign {
		if last := r.last(); last != nil && last.mem == nil {
			last.n += e.Length
		} else if e.Length > 0 {
			r.pieces = append(r.pieces, regionPiece{off: e.Start - r.start, n: e.Length})
		}
		return nil
	}
	if d, ok := r.space.backing.(Direct); ok {
		return r.addDirect(d, e)
	}
	off := e.Start - r.start
	for at, end := e.Offset, e.Offset+e.Length; at < end; {
		n := at >> windowBits
		w, err := r.space.hold(n)
		if err != nil {
			return err
		}
		r.held = append(r.held, n)
		lo := at & (windowSize - 1)
		hi := min(uint64(windowSize), lo+(end-at))
		r.pieces = append(r.pieces, regionPiece{off: off, n: hi - lo, at: at, mem: w.mem[lo:hi:hi]})
		w.cover(lo, hi, 1)
		at, off = at+hi-lo, off+hi-lo
	}
	return nil
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
		n, err := r.space.populate(p.at, p.mem)
		if err != nil {
			return syscall.ENOMEM
		}
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
	_, direct := s.backing.(Direct)
	for _, p := range r.pieces {
		if p.mem == nil || direct {
			continue
		}
		lo := p.at & (windowSize - 1)
		s.windows[p.at>>windowBits].cover(lo, lo+p.n, -1)
	}
	if s.charges.account != nil {
		// What the daemon's copies made stays, and this may be the last we hear of it.
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
func (r *Region) Span(off, n uint64, s *Span) (ok bool) {
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
			s.Add(p.mem[lo : lo+k])
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
