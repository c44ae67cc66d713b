package memory

import (
	"bytes"
	"encoding/binary"
	"sync/atomic"
	"syscall"
)

// A Job is one access to foreign memory. It owns the bytes it moves until it is done, so
// that a thread that comes back late touches nothing of anybody else's:
//
//	read   foreign memory ──▶ buf          then Stage puts buf in place of the memory
//	write  what arrives ──▶ buf ──▶ foreign memory          then Wrote knows it again
//
// All of it lies in one process. Whoever makes a job fills it with Read, Write, Atomic or
// Store, gives it to a Pool, and looks at it again when the pool says that it is done.
type Job struct {
	// Tag is the maker's.
	Tag any

	user  int
	space *Space
	op    jobOp
	parts []part
	buf   []byte
	args  [2]uint64 // of an atomic operation
	old   uint64    // its result
	err   error
	mute  atomic.Bool // nobody waits for it any more
	entry uint64      // among the space's writers
}

type jobOp uint8

const (
	jobRead jobOp = iota
	jobWrite
	jobStore
	jobAdd
	jobSwap
)

// part is a run of foreign memory and how much of buf belongs to it.
type part struct {
	addr uint64
	n    int
}

// set takes the foreign pieces of s and makes room for them.
func (j *Job) set(op jobOp, s *Span) {
	j.op, j.space, j.err, j.parts = op, nil, nil, j.parts[:0]
	j.mute.Store(false)
	n := 0
	for i := range s.pieces {
		if p := &s.pieces[i]; p.Mem == nil {
			j.space = p.Space
			j.parts = append(j.parts, part{p.Addr, p.Len})
			n += p.Len
		}
	}
	if cap(j.buf) < n {
		j.buf = make([]byte, n)
	}
	j.buf = j.buf[:n]
}

// Read makes j read what is foreign in s.
func (j *Job) Read(s *Span) { j.set(jobRead, s) }

// Write makes j write what of src goes to foreign memory in dst. All of src is mapped, and it
// is as long as dst.
func (j *Job) Write(dst, src *Span) {
	j.set(jobWrite, dst)
	r, at := reader{pieces: src.pieces}, 0
	for i := range dst.pieces {
		p := &dst.pieces[i]
		if p.Mem == nil {
			r.read(j.buf[at : at+p.Len])
			at += p.Len
		} else {
			r.skip(p.Len)
		}
	}
}

// Atomic makes j an atomic operation, as Copier.Atomic is one.
func (j *Job) Atomic(s *Span, swap bool, compare, next uint64) {
	op := jobAdd
	if swap {
		op = jobSwap
	}
	j.set(op, s)
	j.args = [2]uint64{compare, next}
}

// Store makes j store a word.
func (j *Job) Store(s *Span, v uint64) {
	j.set(jobStore, s)
	binary.NativeEndian.PutUint64(j.buf, v)
}

// same reports whether j is about the foreign pieces of s.
func (j *Job) same(op jobOp, s *Span) bool {
	if j.op != op {
		return false
	}
	k := 0
	for i := range s.pieces {
		p := &s.pieces[i]
		if p.Mem != nil {
			continue
		}
		if k == len(j.parts) || j.space != p.Space || j.parts[k] != (part{p.Addr, p.Len}) {
			return false
		}
		k++
	}
	return k == len(j.parts)
}

// Stage puts what j has read in the place of the foreign pieces of s; false if they are
// not those that it was to read.
func (j *Job) Stage(s *Span) bool {
	if !j.same(jobRead, s) {
		return false
	}
	at := 0
	for i := range s.pieces {
		if p := &s.pieces[i]; p.Mem == nil {
			*p = Piece{Mem: j.buf[at : at+p.Len : at+p.Len], Len: p.Len}
			at += p.Len
		}
	}
	s.foreign = 0
	return true
}

// Wrote reports whether j has written these very bytes to that very place.
func (j *Job) Wrote(dst, src *Span) bool {
	if !j.same(jobWrite, dst) {
		return false
	}
	r, at := reader{pieces: src.pieces}, 0
	for i := range dst.pieces {
		p := &dst.pieces[i]
		if p.Mem != nil {
			r.skip(p.Len)
			continue
		}
		if !r.equal(j.buf[at : at+p.Len]) {
			return false
		}
		at += p.Len
	}
	return true
}

// DidAtomic reports whether j was this operation, and the former value.
func (j *Job) DidAtomic(s *Span, swap bool, compare, next uint64) (old uint64, ok bool) {
	op := jobAdd
	if swap {
		op = jobSwap
	}
	return j.old, j.same(op, s) && j.args == [2]uint64{compare, next}
}

// DidStore reports whether j has stored v there.
func (j *Job) DidStore(s *Span, v uint64) bool {
	return j.same(jobStore, s) && binary.NativeEndian.Uint64(j.buf) == v
}

// Err is why it failed, once it is done.
func (j *Job) Err() error { return j.err }

// Mute says that nobody waits for j any more: it ends as soon as it can.
func (j *Job) Mute() { j.mute.Store(true) }

// run does it, on a thread that may be held up for as long as the process likes.
func (j *Job) run(u *user) {
	if j.op >= jobStore {
		j.err = j.atomic(u)
		return
	}
	at := 0
	for _, p := range j.parts {
		b := j.buf[at : at+p.n]
		if j.op == jobRead {
			j.err = j.space.read(p.addr, b)
		} else {
			j.err = j.write(p.addr, b)
		}
		if j.err != nil {
			return
		}
		at += p.n
	}
}

// write goes page by page: when nobody waits any more, the page that it was stuck in is the
// last one that it touches.
func (j *Job) write(addr uint64, b []byte) error {
	for len(b) > 0 {
		if j.mute.Load() {
			return syscall.EINTR
		}
		n := min(len(b), int(pageSize-addr%pageSize))
		if err := j.space.write(addr, b[:n]); err != nil {
			return err
		}
		addr, b = addr+uint64(n), b[n:]
	}
	return nil
}

// atomic reads and writes back, while no other operation of the user's does: that makes it
// one step for the NIC (IBV_ATOMIC_HCA).
func (j *Job) atomic(u *user) error {
	u.word.Lock()
	defer u.word.Unlock()
	if len(j.parts) != 1 || j.parts[0].n != 8 {
		return syscall.EFAULT
	}
	addr := j.parts[0].addr
	if j.op != jobStore {
		if err := j.space.read(addr, j.buf); err != nil {
			return err
		}
		j.old = binary.NativeEndian.Uint64(j.buf)
		v := j.old + j.args[1]
		if j.op == jobSwap {
			if j.old != j.args[0] {
				return nil
			}
			v = j.args[1]
		}
		binary.NativeEndian.PutUint64(j.buf, v)
	}
	return j.write(addr, j.buf)
}

// A reader goes through mapped pieces.
type reader struct {
	pieces []Piece
	off    int
}

// next is the run of at most n bytes that comes next.
func (r *reader) next(n int) []byte {
	p := &r.pieces[0]
	b := p.Mem[r.off:min(r.off+n, p.Len)]
	if r.off += len(b); r.off == p.Len {
		r.pieces, r.off = r.pieces[1:], 0
	}
	return b
}

func (r *reader) read(b []byte) {
	for len(b) > 0 {
		b = b[copy(b, r.next(len(b))):]
	}
}

func (r *reader) skip(n int) {
	for n > 0 {
		n -= len(r.next(n))
	}
}

func (r *reader) equal(b []byte) bool {
	for len(b) > 0 {
		p := r.next(len(b))
		if !bytes.Equal(p, b[:len(p)]) {
			return false
		}
		b = b[len(p):]
	}
	return true
}

// CopyMapped copies what of src goes to mapped memory in dst, which is as long.
func CopyMapped(dst, src *Span) {
	r := reader{pieces: src.pieces}
	for i := range dst.pieces {
		if p := &dst.pieces[i]; p.Mem != nil {
			r.read(p.Mem)
		} else {
			r.skip(p.Len)
		}
	}
}
