package memory

import "syscall"

// A Copier copies between spans of mapped memory. It needs nothing of its own.
type Copier struct{}

// Copy copies src to dst and returns how many bytes it moved: all of the shorter of the two.
// It stops with EFAULT at a foreign piece: that is a Job's to reach.
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
			if d.Mem == nil || s.Mem == nil {
				return total, syscall.EFAULT
			}
			copy(d.Mem[do:do+n], s.Mem[so:so+n])
			total += n
			do += n
			if so += n; so == s.Len {
				si, so = si+1, 0
			}
		}
	}
	return total, nil
}
