package memory

// AppendPart appends the bytes of o from one offset up to another.
func (s *Span) AppendPart(o *Span, from, to int) {
	for i := range o.pieces {
		p := o.pieces[i]
		n := p.Len
		if low, high := max(from, 0), min(to, n); low < high {
			if p.Mem != nil {
				p.Mem = p.Mem[low:high]
			}
			if p.aside != nil {
				p.aside = &asidePiece{p.aside.mem[low:high], p.aside.win}
			}
			if p.Mem == nil {
				s.foreign++
			}
			p.Addr += uint64(low)
			p.Len = high - low
			s.pieces = append(s.pieces, p)
			s.length += p.Len
		}
		from, to = from-n, to-n
	}
	s.buffer = nil
}
