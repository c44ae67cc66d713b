package filecopy

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

type unixStat = syscall.Stat_t

// maxFile is the size of the largest file. Its table of checksums must be processed.
const maxFile = 8 << 40

// A receiver is the side of a session that writes files.
type receiver struct {
	s         *session
	to        *target
	preserve  bool
	overwrite bool
	report    func(path string, err error) // called for an entry that was not copied
	skipped   func(path string) bool       // reports whether an entry exists already; nil: none does
	finished  func(path string)            // called when an entry is complete; may be nil
	progress  *Progress
	slots     int
	wishes    *wishes         // what may be sent; nil: anything
	made      map[string]bool // directories that this or an earlier attempt made; used by handle only

	mu     sync.Mutex
	files  map[uint32]*incoming // guarded by mu
	dirs   []*directory         // guarded by mu: their times are set at the end
	open   int                  // guarded by mu: entries in progress
	unsaid int                  // guarded by mu: entries whose end was not sent yet
	last   uint32               // guarded by mu: the highest ID so far
	walked bool                 // guarded by mu: the sender has offered everything
	all    bool                 // guarded by mu: everything is complete, and the sender knows
	left   []string             // guarded by mu: partial files at the end of the session
}

// An incoming is an offered file.
type incoming struct {
	file
	place string // its path below the target

	mu       sync.Mutex
	out      *partial // guarded by mu; nil: not open
	sums     *table   // guarded by mu
	got      set      // guarded by mu: received blocks
	received uint64   // guarded by mu
	end      *end     // guarded by mu; nil: the sender has not finished
	busy     int      // guarded by mu: streams that write to it
	accepted bool     // guarded by mu: chunks may come
}

func newReceiver(s *session, to *target, slots int) *receiver {
	s.sit(false)
	return &receiver{s: s, to: to, slots: slots, made: make(map[string]bool), files: make(map[uint32]*incoming)}
}

// handle handles a message of the sender. Slow work runs in other goroutines.
func (r *receiver) handle(m message) error {
	switch m := m.(type) {
	case *file:
		return r.file(m)
	case *directory:
		return r.entry(&m.meta, func(place string) error {
			made, err := r.to.mkdir(place, m.Mode)
			if err != nil {
				return err
			}
			if made {
				r.made[place] = true
			}
			// A directory that existed before keeps its attributes.
			if !r.made[place] && !r.overwrite {
				return nil
			}
			m.Path = place
			r.mu.Lock()
			r.dirs = append(r.dirs, m)
			r.mu.Unlock()
			return nil
		})
	case *link:
		return r.entry(&m.meta, func(place string) error { return r.to.symlink(place, m.Target) })
	case *end:
		return r.ended(m)
	case *failed:
		return r.gaveUp(m)
	case *finish:
		r.mu.Lock()
		r.walked = true
		r.mu.Unlock()
		return r.finish()
	}
	return violation("%T, which a sender does not send", m)
}

// begin registers an entry.
func (r *receiver) begin(m *meta, isFile bool) (place string, err error) {
	if place, err = r.to.place(m.Path); err != nil {
		return "", err
	}
	if err := r.wishes.check(m.Path, isFile); err != nil {
		return "", err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if m.ID <= r.last || r.walked {
		return "", violation("an entry numbered %d after %d", m.ID, r.last)
	}
	if r.open >= filesAhead {
		return "", violation("more than %d entries at a time", filesAhead)
	}
	r.last = m.ID
	r.open++
	r.unsaid++
	return place, nil
}

// answer sends the end of an entry.
func (r *receiver) answer(id uint32, path string, err error) error {
	var m message = &done{ID: id}
	if err != nil {
		m = &failed{ID: id, Text: plain(err).Error()}
		r.report(path, plain(err))
	} else if r.finished != nil {
		r.finished(path)
	}
	return r.tell(id, m)
}

// tell sends the end of an entry. The entry is removed first, because the sender may offer another at once. That everything is done
// may only be sent afterwards.
func (r *receiver) tell(id uint32, m message) error {
	r.mu.Lock()
	delete(r.files, id)
	r.open--
	r.mu.Unlock()
	if err := r.s.control.send(m); err != nil {
		return err
	}
	r.mu.Lock()
	r.unsaid--
	r.mu.Unlock()
	return r.finish()
}

// entry makes a directory or link before the next message is handled: the entries of a directory follow it.
func (r *receiver) entry(m *meta, make func(place string) error) error {
	place, err := r.begin(m, false)
	if err != nil {
		return err
	}
	path := m.Path
	err = make(place)
	r.s.do(func() error { return r.answer(m.ID, path, err) })
	return nil
}

// file opens the partial file of an offered file.
func (r *receiver) file(m *file) error {
	place, err := r.begin(&m.meta, true)
	if err != nil {
		return err
	}
	if m.Size > maxFile {
		return violation("a file of %d bytes", m.Size)
	}
	in := &incoming{file: *m, place: place, sums: newTable(m.Size)}
	r.mu.Lock()
	r.files[m.ID] = in
	r.mu.Unlock()
	r.progress.found(m.Size, false)
	r.s.do(func() error { return r.prepare(in) })
	return nil
}

// prepare opens the partial file and sends the checksums of what it has.
func (r *receiver) prepare(in *incoming) error {
	if r.skipped != nil && r.skipped(in.Path) {
		r.progress.kept(in.Size)
		return r.tell(in.ID, &skip{ID: in.ID})
	}
	out, err := r.to.create(in.place, in.Size, r.overwrite)
	if err != nil {
		return r.answer(in.ID, in.Path, err)
	}
	in.mu.Lock()
	in.out = out
	in.mu.Unlock()
	if out.had > 0 {
		tell := func(first uint64, sums []uint64) error {
			return r.s.control.send(&have{ID: in.ID, First: first, Sums: sums})
		}
		// No chunk can come yet: the file is not accepted.
		if err := out.survey(r.s.ctx, in.Size, tell, in.sums.set); err != nil {
			return r.abandon(in, err)
		}
	}
	if err := out.resize(in.Size, in.Sparse); err != nil {
		return r.abandon(in, err)
	}
	in.mu.Lock()
	in.accepted = true
	in.mu.Unlock()
	return r.s.control.send(&accept{ID: in.ID})
}

// abandon gives up a file, for a reason of this side or the sender, and removes its partial file.
func (r *receiver) abandon(in *incoming, err error) error {
	in.mu.Lock()
	out := in.out
	in.out = nil
	in.mu.Unlock()
	if out == nil {
		return nil // done already
	}
	if r.s.ctx.Err() != nil {
		r.leave(in, out)
		return nil
	}
	out.remove()
	return r.answer(in.ID, in.Path, err)
}

// leave keeps a partial file for the next attempt, unless the peer violated the protocol or nothing was received.
func (r *receiver) leave(in *incoming, out *partial) {
	cause := context.Cause(r.s.ctx)
	var v *ViolationError
	var d *DamagedError
	in.mu.Lock()
	nothing := in.received == 0 && out.had == 0
	in.mu.Unlock()
	if errors.As(cause, &v) || errors.As(cause, &d) || out.there || nothing {
		out.remove()
		return
	}
	out.close()
	r.mu.Lock()
	defer r.mu.Unlock()
	r.left = append(r.left, in.Path)
}

// close closes all open files at the end of the session.
func (r *receiver) close() {
	for _, in := range r.files {
		if in.out != nil {
			r.leave(in, in.out)
		}
	}
	r.to.dir.Close()
}

// stream receives chunks from one stream and writes them.
func (r *receiver) stream(c conn) error {
	if err := c.open(r.slots); err != nil {
		return err
	}
	for {
		s, err := c.next(r.s.ctx)
		if err != nil {
			return err
		}
		if err := r.chunk(s); err != nil {
			return err
		}
		if err := c.release(s); err != nil {
			return err
		}
	}
}

// chunk checks a chunk and writes it. Its error ends the session; an error of the file ends only the file.
func (r *receiver) chunk(s *slot) error {
	var h header
	if err := h.parse(s.head); err != nil {
		return err
	}
	if int(h.length) != s.length {
		return violation("a chunk of %d bytes that says it has %d", s.length, h.length)
	}
	r.mu.Lock()
	in, last := r.files[h.id], r.last
	r.mu.Unlock()
	if in == nil {
		if h.id == 0 || h.id > last {
			return violation("a chunk of file %d, which it did not offer", h.id)
		}
		return nil // of a file that was given up
	}
	out, err := in.claim(&h)
	if err != nil || out == nil {
		return err
	}
	data := s.data[:s.length]
	if err = h.check(data); err == nil {
		err = out.write(data, int64(h.offset), in.Sparse)
	}
	return r.wrote(in, &h, err)
}

// claim checks that the file lacks a chunk; nil: the file was given up.
func (in *incoming) claim(h *header) (*partial, error) {
	in.mu.Lock()
	defer in.mu.Unlock()
	if !in.accepted {
		return nil, violation("a chunk of file %d, which was not accepted yet", h.id)
	}
	if in.out == nil {
		return nil, nil
	}
	if h.offset > in.Size || uint64(h.length) > in.Size-h.offset {
		return nil, violation("%d bytes at %d of a file of %d", h.length, h.offset, in.Size)
	}
	if h.length%blockSize != 0 && h.offset+uint64(h.length) != in.Size {
		return nil, violation("a chunk of %d bytes, which is neither whole blocks nor the file's end", h.length)
	}
	first := h.offset / blockSize
	for i := range blocks(uint64(h.length)) {
		if !in.got.add(first + i) {
			return nil, violation("block %d twice", first+i)
		}
	}
	in.busy++
	return in.out, nil
}

// wrote records the result of writing a chunk.
func (r *receiver) wrote(in *incoming, h *header, err error) error {
	in.mu.Lock()
	in.busy--
	in.received += uint64(h.length)
	first := h.offset / blockSize
	for i := range blocks(uint64(h.length)) {
		in.sums.set(first+i, h.sums[i])
	}
	in.mu.Unlock()
	if err != nil {
		var d *DamagedError
		if errors.As(err, &d) {
			return err
		}
		return r.abandon(in, err)
	}
	r.progress.moved(int(h.length))
	return r.complete(in)
}

// ended handles the end of a file. Chunks on other connections may still be in flight.
func (r *receiver) ended(m *end) error {
	r.mu.Lock()
	in, last := r.files[m.ID], r.last
	r.mu.Unlock()
	if in == nil {
		if m.ID == 0 || m.ID > last {
			return violation("the end of a file that it did not offer")
		}
		return nil
	}
	in.mu.Lock()
	wrong := in.end != nil || !in.accepted
	in.end = m
	in.mu.Unlock()
	if wrong {
		return violation("the end of a file twice, or before it was accepted")
	}
	if m.Sent > in.Size {
		return violation("word of %d bytes sent, of a file of %d", m.Sent, in.Size)
	}
	r.s.do(func() error { return r.complete(in) })
	return nil
}

// complete renames a file when all of it was received.
func (r *receiver) complete(in *incoming) error {
	in.mu.Lock()
	if in.out == nil || in.end == nil || in.busy > 0 || in.received < in.end.Sent {
		in.mu.Unlock()
		return nil
	}
	out, same := in.out, in.sums.digest() == in.end.Digest && in.received == in.end.Sent
	in.out = nil
	in.mu.Unlock()
	var err error
	if !same {
		err = damaged("the sums of all blocks are not those of the sender")
	} else {
		err = out.commit(&in.meta, r.preserve)
	}
	if err != nil {
		out.remove()
	} else {
		r.progress.kept(in.Size - in.received)
	}
	return r.answer(in.ID, in.Path, err)
}

// gaveUp handles the sender's message that it cannot continue or offer an entry.
func (r *receiver) gaveUp(m *failed) error {
	if m.ID == 0 {
		r.report("", errors.New(m.Text))
		return nil
	}
	r.mu.Lock()
	in := r.files[m.ID]
	r.mu.Unlock()
	if in == nil {
		return nil
	}
	r.s.do(func() error { return r.abandon(in, errors.New(m.Text)) })
	return nil
}

// finish sends that everything is done, when it is.
func (r *receiver) finish() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if !r.walked || r.unsaid > 0 {
		return nil
	}
	r.unsaid = math.MaxInt // only once
	dirs := r.dirs
	r.s.do(func() error {
		r.directories(dirs)
		if err := r.s.control.send(&finished{}); err != nil {
			return err
		}
		r.mu.Lock()
		r.all = true
		r.mu.Unlock()
		// The sender ends the connection, so that this message is not lost.
		select {
		case <-r.s.ctx.Done():
			return nil
		case <-time.After(dialTime):
			return errFinished
		}
	})
	return nil
}

// directories sets the attributes of directories, the deepest first.
func (r *receiver) directories(dirs []*directory) {
	slices.SortFunc(dirs, func(a, b *directory) int { return cmp.Compare(len(b.Path), len(a.Path)) })
	mask := umask()
	for _, d := range dirs {
		f, err := openBeneath(r.to.dir, d.Path, unix.O_RDONLY|unix.O_DIRECTORY, 0)
		if err != nil {
			continue
		}
		mode := d.Mode & 0o777
		if !r.preserve {
			mode &^= mask
		}
		err = unix.Fchmod(int(f.Fd()), mode)
		if err == nil && r.preserve {
			err = setTime(f, &d.meta)
		}
		if err != nil {
			r.report(d.Path, fmt.Errorf("its attributes: %w", err))
		}
		f.Close()
	}
}
