package memory

import (
	"bytes"
	"encoding/binary"
	"sync/atomic"
	"syscall"
	"time"
)

// A Job is one access to foreign memory of one process. The bytes it moves lie in a Buffer that
// it is a user of, so a thread that returns late touches no memory of any other process:
//
//	read   foreign memory ──▶ Buffer      then Stage puts the Buffer's bytes in place of the memory
//	write  burst ──▶ Buffer ──▶ foreign memory      then Wrote recognises the burst
//
// The loop fills a Job with Read and Fetch, Write, Atomic or Store, and gives it to a Pool. It
// looks at the Job again when the Pool says that it is done. Then Stage and Wrote go through
// its parts in order: a Job can serve several messages, and fails only those from the first
// part on that it could not move.
type Job struct {
	// Tag is the maker's.
	Tag any
	// Buffers are where it takes its Buffer from; nil: it allocates one.
	Buffers *Buffers

	// The pool's mu guards these.
	user  int
	of    *user
	began time.Time // when a thread began it
	stuck bool      // the thread counts as stuck

	space  *Space
	op     jobOp
	parts  []part
	bufs   []*Buffer  // that hold the parts
	args   [2]uint64  // of an atomic operation
	old    uint64     // its result
	word   [8]byte    // the bytes of an atomic operation
	holds  []*window  // that parts lie in
	mapped mappedWord // it is changed here
	err    error
	good   int         // parts before this one were moved
	next   int         // the part that Stage or Wrote goes on with,
	off    int         // and how much of it is staged
	mute   atomic.Bool // the loop does not wait for it any more
	entry  uint64      // among the space's writers
}

type jobOp uint8

const (
	jobRead jobOp = iota
	jobWrite
	jobStore
	jobAdd
	jobSwap
)

// part is a run of foreign memory, the bytes that belong there, and the message that they are of.
type part struct {
	addr   uint64
	mapped uintptr // where the daemon has it mapped; 0: it is reached at addr of the process
	mem    []byte
	n      int
	key    uint32
}

// pieceMost is the most that one system call moves. A Job that is given up ends after its current
// call. So if that call hangs in a process's memory, at most this many bytes of that process change
// afterwards.
const pieceMost = 64 << 10

// begin empties j for an operation.
func (j *Job) begin(op jobOp) {
	j.Recycle()
	j.op = op
}

// Recycle ends the use of j's Buffers. No thread has j.
func (j *Job) Recycle() {
	for i, b := range j.bufs {
		b.Drop()
		j.bufs[i] = nil
	}
	clear(j.parts)
	j.mapped.release()
	j.releaseWindows()
	j.bufs, j.parts = j.bufs[:0], j.parts[:0]
	j.space, j.err, j.good, j.next, j.off = nil, nil, 0, 0, 0
	j.mute.Store(false)
}

// Read makes j read what ReadMore says. Fetch follows.
func (j *Job) Read() { j.begin(jobRead) }

// ReadMore makes j read what is foreign in s, of a message that key names. All of it lies in one
// process.
func (j *Job) ReadMore(s *Span, key uint32) {
	for i := range s.pieces {
		if p := &s.pieces[i]; p.Mem == nil {
			j.space = p.Space
			mapped := j.holdWindow(p)
			if k := len(j.parts) - 1; k >= 0 && mapped == 0 && j.parts[k].mapped == 0 && j.parts[k].key == key && j.parts[k].addr+uint64(j.parts[k].n) == p.Addr {
				j.parts[k].n += p.Len
				continue
			}
			j.parts = append(j.parts, part{addr: p.Addr, mapped: mapped, n: p.Len, key: key})
		}
	}
}

// Fetch finds a Buffer for what j is to read.
func (j *Job) Fetch() {
	n := 0
	for i := range j.parts {
		n += j.parts[i].n
	}
	b := j.Buffers.Get(n)
	j.bufs = append(j.bufs, b)
	at := 0
	for i := range j.parts {
		p := &j.parts[i]
		p.mem = b.mem[at : at+p.n : at+p.n]
		at += p.n
	}
}

// Write makes j write what of src goes to foreign memory in dst. All of src is mapped, and it
// is as long as dst. If src does not lie in a Buffer, j copies all of it to one and reports
// that Buffer.
func (j *Job) Write(dst, src *Span) (copied *Buffer) {
	j.begin(jobWrite)
	return j.WriteMore(dst, src)
}

// WriteMore makes j write also src to dst, which lies in the same process, as Write does.
func (j *Job) WriteMore(dst, src *Span) (copied *Buffer) {
	var whole [1]Piece
	r := reader{pieces: src.pieces}
	if b := src.buffer; b != nil {
		b.Hold()
		j.bufs = append(j.bufs, b)
	} else {
		copied = j.Buffers.Get(src.length)
		j.bufs = append(j.bufs, copied)
		mem := copied.mem[:src.length]
		r.read(mem)
		whole = [1]Piece{{Mem: mem, Len: len(mem)}}
		r = reader{pieces: whole[:]}
	}
	for i := range dst.pieces {
		p := &dst.pieces[i]
		if p.Mem != nil {
			r.skip(p.Len)
			continue
		}
		j.space = p.Space
		mapped := j.holdWindow(p)
		for addr, left := p.Addr, p.Len; left > 0; {
			mem := r.next(left)
			j.parts = append(j.parts, part{addr: addr, mapped: mapped, mem: mem, n: len(mem)})
			addr, left = addr+uint64(len(mem)), left-len(mem)
			if mapped != 0 {
				mapped += uintptr(len(mem))
			}
		}
	}
	return copied
}

// Atomic makes j an atomic operation, as Copier.Atomic is one.
func (j *Job) Atomic(s *Span, swap bool, compare, next uint64) {
	op := jobAdd
	if swap {
		op = jobSwap
	}
	j.begin(op)
	j.single(s)
	j.args = [2]uint64{compare, next}
}

// Store makes j store a word.
func (j *Job) Store(s *Span, v uint64) {
	j.begin(jobStore)
	j.single(s)
	j.args[1] = v
	binary.NativeEndian.PutUint64(j.word[:], v)
}

// single takes the foreign pieces of s for an operation on one word.
func (j *Job) single(s *Span) {
	j.ReadMore(s, 0)
	if len(j.parts) == 1 && j.parts[0].n == len(j.word) {
		j.parts[0].mem = j.word[:]
	}
}

// same reports whether j is an operation on the word that s is.
func (j *Job) same(op jobOp, s *Span) bool {
	return j.op == op && len(j.parts) == 1 && len(s.pieces) == 1 && s.foreign == 1 &&
		j.space == s.pieces[0].Space && j.parts[0].addr == s.pieces[0].Addr && j.parts[0].n == s.pieces[0].Len
}

// Spent reports whether every part of j has been staged or recognised.
func (j *Job) Spent() bool { return j.next == len(j.parts) }

// Stage replaces the foreign pieces of s by the next bytes that j has read for the message that key
// names. The next call continues after them. ok is false if j has read other bytes. err is the error
// for bytes that could not be read.
func (j *Job) Stage(s *Span, key uint32) (ok bool, err error) {
	all := s.foreign == len(s.pieces)
	for i := 0; i < len(s.pieces); i++ {
		p := &s.pieces[i]
		if p.Mem != nil {
			continue
		}
		mem, e := j.take(p.Space, key, p.Addr, p.Len)
		if mem == nil {
			return false, nil
		}
		if err == nil {
			err = e
		}
		*p = Piece{Mem: mem, Len: p.Len}
	}
	if s.foreign = 0; all {
		s.buffer = j.bufs[0]
	}
	return true, err
}

// take returns the next n bytes that j has read, if they are at addr; nil if they are not.
func (j *Job) take(s *Space, key uint32, addr uint64, n int) ([]byte, error) {
	if j.op != jobRead || j.space != s || j.Spent() {
		return nil, nil
	}
	p := &j.parts[j.next]
	if p.key != key || p.addr+uint64(j.off) != addr || n > p.n-j.off {
		return nil, nil
	}
	var err error
	if j.next >= j.good {
		err = j.err
	}
	mem := p.mem[j.off : j.off+n : j.off+n]
	if j.off += n; j.off == p.n {
		j.next, j.off = j.next+1, 0
	}
	return mem, err
}

// Wrote reports whether the next that j has written are these very bytes, to that very place,
// and goes on behind them. err is why some of it could not be written. (Comparing a Buffer with
// itself takes no time.)
func (j *Job) Wrote(dst, src *Span) (ok bool, err error) {
	if j.op != jobWrite {
		return false, nil
	}
	r, k := reader{pieces: src.pieces}, j.next
	for i := range dst.pieces {
		p := &dst.pieces[i]
		if p.Mem != nil {
			r.skip(p.Len)
			continue
		}
		for addr, left := p.Addr, p.Len; left > 0; k++ {
			if k == len(j.parts) || j.space != p.Space || j.parts[k].addr != addr || j.parts[k].n > left || !r.equal(j.parts[k].mem) {
				return false, nil
			}
			addr, left = addr+uint64(j.parts[k].n), left-j.parts[k].n
		}
	}
	if j.next = k; k > j.good {
		err = j.err
	}
	return true, err
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
	return j.same(jobStore, s) && binary.NativeEndian.Uint64(j.word[:]) == v
}

// Err returns the error of a job that is done.
func (j *Job) Err() error { return j.err }

// Mute says that the loop does not wait for j any more: it ends as soon as it can.
func (j *Job) Mute() { j.mute.Store(true) }

// Muted reports whether Mute was called.
func (j *Job) Muted() bool { return j.mute.Load() }

// run does it, on a thread that may be held up for as long as the process likes.
func (j *Job) run(u *user) {
	defer j.releaseWindows()
	if j.mapped.at != nil {
		j.err = j.change()
		j.mapped.release()
		return
	}
	if j.op >= jobStore {
		j.err = j.atomic(u)
		return
	}
	for i := range j.parts {
		if j.err = j.move(&j.parts[i]); j.err != nil {
			return
		}
		j.good = i + 1
	}
}

// source is where a part is accessed: the memory of the process, or the daemon's mapping.
func (j *Job) source(p *part) (Remote, uint64) {
	if p.mapped != 0 {
		return ownMemory(), uint64(p.mapped)
	}
	return j.space.foreign, p.addr
}

// move reads or writes a part, in pieces that end where pieceMost divides the address.
func (j *Job) move(p *part) (err error) {
	from, addr := j.source(p)
	for b := p.mem; len(b) > 0; {
		if j.mute.Load() {
			return syscall.EINTR
		}
		n := min(len(b), int(pieceMost-addr%pieceMost))
		if j.op == jobRead {
			err = readFrom(from, addr, b[:n])
		} else {
			err = writeTo(from, addr, b[:n])
		}
		if err != nil {
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
	if len(j.parts) != 1 || j.parts[0].mem == nil {
		return syscall.EFAULT
	}
	p := &j.parts[0]
	if j.op != jobStore {
		from, addr := j.source(p)
		if err := readFrom(from, addr, j.word[:]); err != nil {
			return err
		}
		j.old = binary.NativeEndian.Uint64(j.word[:])
		v := j.old + j.args[1]
		if j.op == jobSwap {
			if j.old != j.args[0] {
				return nil
			}
			v = j.args[1]
		}
		binary.NativeEndian.PutUint64(j.word[:], v)
	}
	return j.move(p)
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
