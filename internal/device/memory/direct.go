package memory

// A Direct backing is already mapped by the daemon, all of it, so its regions need no windows: the
// memory of a virtual machine. There, an offset is a guest-physical address, and a region has a
// piece for every run of pages. The creator of a Direct keeps it mapped until every Space in it is
// closed and every region released. Its Map is never called.
type Direct interface {
	Backing
	// Slice is the n bytes at an offset; nil if some of them are not memory.
	Slice(offset, n uint64) []byte
	// Contains reports whether an address of the daemon lies in it.
	Contains(addr uintptr) bool
}

// addDirect appends an extent of memory that is mapped already: EFAULT if it is none. Extents
// that follow one another there are one piece.
func (r *Region) addDirect(d Direct, e Extent) error {
	if e.Length == 0 {
		return nil
	}
	mem := d.Slice(e.Offset, e.Length)
	if mem == nil {
		return errNotMemory
	}
	if last := r.last(); last != nil && last.mem != nil && last.at+last.n == e.Offset {
		if both := d.Slice(last.at, last.n+e.Length); both != nil {
			last.mem, last.n = both, last.n+e.Length
			return nil
		}
	}
	r.pieces = append(r.pieces, regionPiece{off: e.Start - r.start, n: e.Length, at: e.Offset, mem: mem})
	return nil
}

// populateDirect makes the pages present. If the agent has really pinned them, they are present already.
// If not, they are allocated here, because the loop must not wait for that. EFAULT: they cannot be
// allocated. They stay when the region is released, because they belong to the machine. Until then they
// are charged as Memory.
func (r *Region) populateDirect() error {
	for _, p := range r.pieces {
		if p.mem != nil && populate(pagesOf(p.mem)) != nil {
			return errNotMemory
		}
	}
	return nil
}

// OnRelease makes Release call f, which must not wait. pin is the client's number of the memory, for the next daemon (ThawOptions.Released).
func (r *Region) OnRelease(pin uint32, f func()) { r.pin, r.released = pin, f }
