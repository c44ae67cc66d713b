package memory

// bounce is how much is carried at once between two foreign pieces.
const bounce = 64 << 10

// A Copier copies between spans. It owns the scratch space that copies between two
// foreign processes need, so each loop has its own.
type Copier struct{ buf []byte }

// Copy copies src to dst and returns how many bytes it moved: all of the shorter
// of the two, unless foreign memory is not there (EFAULT) or not ours to touch (EPERM).
// Foreign memory may take for ever: see Pool.
func (c *Copier) Copy(dst, src *Span) (int, error) {
	total := 0
	var si, so int
	for di := range dst.pieces {
		d := &dst.pieces[di]
		for do := 0; do < d.Len; {
			if si == len(src.pieces) {
				return total, nil
			}
			s := &src.pieces[si]
			n := min(d.Len-do, s.Len-so)
			if d.Mem != nil && s.Mem != nil {
				copy(d.Mem[do:do+n], s.Mem[so:so+n])
			} else if err := c.foreign(d, do, s, so, n); err != nil {
				return total, err
			}
			total += n
			do += n
			if so += n; so == s.Len {
				si, so = si+1, 0
			}
		}
	}
	return total, nil
}

func (c *Copier) foreign(d *Piece, do int, s *Piece, so, n int) error {
	switch {
	case s.Mem != nil:
		return d.Space.write(d.Addr+uint64(do), s.Mem[so:so+n])
	case d.Mem != nil:
		return s.Space.read(s.Addr+uint64(so), d.Mem[do:do+n])
	}
	if c.buf == nil {
		c.buf = make([]byte, bounce)
	}
	for n > 0 {
		k := min(n, bounce)
		if err := s.Space.read(s.Addr+uint64(so), c.buf[:k]); err != nil {
			return err
		}
		if err := d.Space.write(d.Addr+uint64(do), c.buf[:k]); err != nil {
			return err
		}
		so, do, n = so+k, do+k, n-k
	}
	return nil
}
