package memory

// A Piece is one contiguous run of bytes: mapped into the daemon (Mem), or
// foreign (Space and Addr), to be reached by copy calls only.
type Piece struct {
	Mem   []byte
	Space *Space // nil when Mem is set
	Addr  uint64
	Len   int
}

// A Span is a scatter list: what a message's bytes are read from or written to.
// It is scratch space, reset and refilled for every burst, so that the data path
// does not allocate. A Span never outlives the engine turn that built it: the
// memory under it may be unmapped afterwards.
type Span struct {
	pieces  []Piece
	length  int
	foreign int // pieces that are
}

// Reset empties s and keeps its storage.
func (s *Span) Reset() {
	clear(s.pieces)
	s.pieces = s.pieces[:0]
	s.length, s.foreign = 0, 0
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
}

// AddForeign appends n bytes at addr of the process behind sp.
func (s *Span) AddForeign(sp *Space, addr uint64, n int) {
	if n == 0 {
		return
	}
	s.pieces = append(s.pieces, Piece{Space: sp, Addr: addr, Len: n})
	s.length += n
	s.foreign++
}

// Append appends what o holds.
func (s *Span) Append(o *Span) {
	s.pieces = append(s.pieces, o.pieces...)
	s.length += o.length
	s.foreign += o.foreign
}

// Foreign reports whether some of s is not mapped.
func (s *Span) Foreign() bool { return s.foreign > 0 }
