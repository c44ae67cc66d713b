package memory

import (
	"encoding/binary"
	"sync/atomic"
	"syscall"
)

// Atomic applies CompareAndSwap semantics in one step to the 8 bytes of s: with
// swap set, the word becomes next if it equals compare; else next is added to it.
// It returns the former value. Mapped memory is changed with the processor's
// atomics, so the application's own atomics hold too; a word across pieces is read and
// written back, which is atomic only between NIC operations (IBV_ATOMIC_HCA).
func (c *Copier) Atomic(s *Span, swap bool, compare, next uint64) (uint64, error) {
	if len(s.pieces) == 1 {
		if w := word(s.pieces[0].Mem); w != nil {
			return apply(w, swap, compare, next), nil
		}
	}
	return c.slowAtomic(s, swap, compare, next)
}

// apply is Atomic on a mapped word.
func apply(w *atomic.Uint64, swap bool, compare, next uint64) (old uint64) {
	for {
		old := w.Load()
		v := old + next
		if swap {
			if old != compare {
				return old
			}
			v = next
		}
		if w.CompareAndSwap(old, v) {
			return old
		}
	}
}

func (c *Copier) slowAtomic(s *Span, swap bool, compare, next uint64) (uint64, error) {
	var b [8]byte
	var mine Span
	mine.Add(b[:])
	if n, err := c.Copy(&mine, s); err != nil || n != 8 {
		return 0, syscall.EFAULT
	}
	old := binary.NativeEndian.Uint64(b[:])
	v := old + next
	if swap {
		if old != compare {
			return old, nil
		}
		v = next
	}
	binary.NativeEndian.PutUint64(b[:], v)
	if n, err := c.Copy(s, &mine); err != nil || n != 8 {
		return 0, syscall.EFAULT
	}
	return old, nil
}

// Store writes v to the 8 bytes of s in one step.
func (c *Copier) Store(s *Span, v uint64) error {
	if len(s.pieces) == 1 {
		if w := word(s.pieces[0].Mem); w != nil {
			w.Store(v)
			return nil
		}
	}
	var b [8]byte
	binary.NativeEndian.PutUint64(b[:], v)
	var mine Span
	mine.Add(b[:])
	if n, err := c.Copy(s, &mine); err != nil || n != 8 {
		return syscall.EFAULT
	}
	return nil
}
