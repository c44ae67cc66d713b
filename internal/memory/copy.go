package memory

import (
	"syscall"

	"golang.org/x/sys/unix"
)

// bounce is how much is carried at once between two foreign pieces.
const bounce = 64 << 10

// A Copier copies between spans. It owns the scratch space that copies between two
// foreign processes need, so each loop has its own.
type Copier struct {
	buf []byte
	src [1]unix.RemoteIovec
	loc [1]unix.Iovec
}

// Copy copies src to dst and returns how many bytes it moved: all of the shorter
// of the two, unless a foreign process refused (EFAULT: it unmapped the memory,
// ESRCH: it is gone, EPERM: we may not).
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
		return d.Space.write(d.Addr+uint64(do), s.Mem[so:so+n], c)
	case d.Mem != nil:
		return s.Space.read(s.Addr+uint64(so), d.Mem[do:do+n], c)
	}
	if c.buf == nil {
		c.buf = make([]byte, bounce)
	}
	for n > 0 {
		k := min(n, bounce)
		if err := s.Space.read(s.Addr+uint64(so), c.buf[:k], c); err != nil {
			return err
		}
		if err := d.Space.write(d.Addr+uint64(do), c.buf[:k], c); err != nil {
			return err
		}
		so, do, n = so+k, do+k, n-k
	}
	return nil
}

// A carrier is process_vm_readv or process_vm_writev.
type carrier func(pid int, local []unix.Iovec, remote []unix.RemoteIovec, flags uint) (int, error)

// read fills b from addr of the process.
func (s *Space) read(addr uint64, b []byte, c *Copier) error {
	return s.carry(addr, b, c, unix.ProcessVMReadv)
}

// write copies b to addr of the process.
func (s *Space) write(addr uint64, b []byte, c *Copier) error {
	return s.carry(addr, b, c, unix.ProcessVMWritev)
}

// carry moves all of b, in as many calls as it takes.
func (s *Space) carry(addr uint64, b []byte, c *Copier, call carrier) error {
	for len(b) > 0 {
		c.set(addr, b)
		n, err := call(s.pid, c.loc[:], c.src[:], 0)
		if err != nil {
			return err
		}
		if n == 0 {
			return syscall.EFAULT
		}
		addr, b = addr+uint64(n), b[n:]
	}
	return nil
}

func (c *Copier) set(addr uint64, b []byte) {
	c.loc[0].Base = &b[0]
	c.loc[0].SetLen(len(b))
	c.src[0] = unix.RemoteIovec{Base: uintptr(addr), Len: len(b)}
}
