package memory

// A Piece is one contiguous run of bytes: mapped into the daemon (Mem), or
// foreign, to be reached by copy calls only. What is a client's lies at Addr of its Space.
type Piece struct {
	Mem   []byte // nil: foreign
	Space *Space // nil: the daemon's own bytes
	Addr  uint64
	Len   int
	aside *asidePiece // foreign only because the loop may not access it; nil: not mapped
}

// A Span is a scatter list: what a message's bytes are read from or written to.
// It is scratch space, reset and refilled for every burst, so that the data path
// does not allocate. A Span never outlives the engine turn that built it: the
// memory under it may be unmapped afterwards.
type Span struct {
	pieces  []Piece
	length  int
	foreign int     // pieces that are
	buffer  *Buffer // holds every byte; nil: some lie elsewhere
}

// Reset empties s and keeps its storage.
func (s *Span) Reset() {
	clear(s.pieces)
	s.pieces = s.pieces[:0]
	s.length, s.foreign, s.buffer = 0, 0, nil
}

// Len is the number of bytes in s.
func (s *Span) Len() int { return s.length }

// Pieces are the runs of s, in order.
func (s *Span) Pieces() []Piece { return s.pieces }

// Add appends bytes that the daemon can touch.
func (s *Span) Add(mem []byte) {
	if len(mem) == 0 {
		return
	}
	s.pieces = append(s.pieces, Piece{Mem: mem, Len: len(mem)})
	s.length += len(mem)
	s.buffer = nil
}

// addMapped appends bytes at addr of the process behind sp, which the daemon has mapped.
func (s *Span) addMapped(sp *Space, addr uint64, mem []byte) {
	s.pieces = append(s.pieces, Piece{Mem: mem, Space: sp, Addr: addr, Len: len(mem)})
	s.length += len(mem)
	s.buffer = nil
}

// AddBuffer appends bytes of b to s, which is empty. It does not count as a user of b.
func (s *Span) AddBuffer(b *Buffer, mem []byte) {
	if len(mem) > 0 {
		s.Add(mem)
		s.buffer = b
	}
}

// Buffer is the Buffer that holds every byte of s; nil if there is none.
func (s *Span) Buffer() *Buffer { return s.buffer }

// AddForeign appends n bytes at addr of the process behind sp.
func (s *Span) AddForeign(sp *Space, addr uint64, n int) {
	if n == 0 {
		return
	}
	s.pieces = append(s.pieces, Piece{Space: sp, Addr: addr, Len: n})
	s.length += n
	s.foreign++
	s.buffer = nil
}

// addAside appends bytes at addr of the process behind sp, which the daemon has mapped in w and which the
// loop may not access.
func (s *Span) addAside(sp *Space, addr uint64, w *window, mem []byte) {
	s.pieces = append(s.pieces, Piece{Space: sp, Addr: addr, Len: len(mem), aside: &asidePiece{mem, w}})
	s.length += len(mem)
	s.foreign++
	s.buffer = nil
}

// Append appends the pieces of o.
func (s *Span) Append(o *Span) {
	s.pieces = append(s.pieces, o.pieces...)
	s.length += o.length
	s.foreign += o.foreign
	s.buffer = nil
}

// Foreign reports whether some of s is not mapped.
func (s *Span) Foreign() bool { return s.foreign > 0 }

// ForeignLen is the number of bytes in s that are not mapped.
func (s *Span) ForeignLen() int {
	n := 0
	for i := range s.pieces {
		if s.pieces[i].Mem == nil {
			n += s.pieces[i].Len
		}
	}
	return n
}
