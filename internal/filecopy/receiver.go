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

// maxFile is the largest file: its table of sums has to be gone through.
const maxFile = 8 << 40

// A receiver is the side of a session that writes files.
type receiver struct {
	s         *session
	to        *target
	preserve  bool
	overwrite bool
	report    func(path string, err error) // of an entry that was not copied
	skipped   func(path string) bool       // reports whether an entry is here already; nil: none is
	finished  func(path string)            // an entry has arrived; nil: nobody wants to know
	progress  *Progress
	slots     int
	wishes    *wishes         // what may come; nil: everything
	made      map[string]bool // directories that this or an earlier attempt made; handle's

	mu     sync.Mutex
	files  map[uint32]*incoming // guarded by mu
	dirs   []*directory         // guarded by mu: their times are set at the end
	open   int                  // guarded by mu: entries under way
	unsaid int                  // guarded by mu: those whose end the sender was not told yet
	last   uint32               // guarded by mu: the highest ID so far
	walked bool                 // guarded by mu: the sender has nothing more
	all    bool                 // guarded by mu: everything has come, and the sender knows
	left   []string             // guarded by mu: what is partial when the session has ended
}

// An incoming is a file that was offered.
type incoming struct {
	file
	place string // its path below the target

	mu       sync.Mutex
	out      *partial // guarded by mu; nil: not yet, or not any more
	sums     *table   // guarded by mu
	got      set      // guarded by mu: blocks that came
	received uint64   // guarded by mu
	end      *end     // guarded by mu; nil: the sender is not done
	busy     int      // guarded by mu: streams that write to it
	accepted bool     // guarded by mu: chunks may come
}

func newReceiver(s *session, to *target, slots int) *receiver {
	s.sit(false)
	return &receiver{s: s, to: to, slots: slots, made: make(map[string]bool), files: make(map[uint32]*incoming)}
}

// handle takes a message of the sender. What could take long is done beside.
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
			// One that was there before keeps its attributes.
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

// begin counts an entry in.
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

// answer tells the end of an entry.
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

// tell tells the end of an entry. The sender may offer another as soon as it hears that, so it is counted
// out before; that all is done may only be said after.
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

// entry makes a directory or link. It is done before the next message is taken, since what is in a
// directory comes after it.
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

// file opens the partial file of what was offered.
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

// prepare opens the partial file and tells what it has.
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
		// No chunk has come yet: the file is not accepted.
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

// abandon gives a file up, for a reason of its own or of its sender, and removes what came of it.
func (r *receiver) abandon(in *incoming, err error) error {
	in.mu.Lock()
	out := in.out
	in.out = nil
	in.mu.Unlock()
	if out == nil {
		return nil // somebody else did
	}
	if r.s.ctx.Err() != nil {
		r.leave(in, out)
		return nil
	}
	out.remove()
	return r.answer(in.ID, in.Path, err)
}

// leave leaves a partial file for the next attempt, unless the peer is not to be trusted or nothing has
// come.
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

// close ends the files that are still open, when the session has ended.
func (r *receiver) close() {
	for _, in := range r.files {
		if in.out != nil {
			r.leave(in, in.out)
		}
	}
	r.to.dir.Close()
}

// stream takes chunks from one stream and writes them.
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

// chunk checks a chunk and writes it. Its error ends the session; trouble with the file is the file's.
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
		return nil // of one that was given up
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

// claim checks that a chunk is one that the file lacks; nil: the file was given up.
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

// wrote notes what became of a chunk.
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

// ended takes the word that all of a file was sent. Chunks on other connections may still be under way.
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

// complete gives a file its name when everything has come.
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

// gaveUp takes the sender's word that it cannot go on with a file, or could not offer something.
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

// finish tells that all is done, once it is.
func (r *receiver) finish() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if !r.walked || r.unsaid > 0 {
		return nil
	}
	r.unsaid = math.MaxInt // once
	dirs := r.dirs
	r.s.do(func() error {
		r.directories(dirs)
		if err := r.s.control.send(&finished{}); err != nil {
			return err
		}
		r.mu.Lock()
		r.all = true
		r.mu.Unlock()
		// The sender ends the connection, so that this word is not lost.
		select {
		case <-r.s.ctx.Done():
			return nil
		case <-time.After(dialTime):
			return errFinished
		}
	})
	return nil
}

// directories gives the directories their attributes, those below first.
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
