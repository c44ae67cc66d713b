package filecopy

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"slices"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// A sender is the side of a session that has the files.
//
//	walk ── file ──▶ receiver ── have, accept ──▶ ready ── take ──▶ streams: read, sum, post
//	                                              the last of them ── end ──▶ receiver ── done ──▶
type sender struct {
	s         *session
	from      Files
	recursive bool
	slots     int                          // limit of a stream
	report    func(path string, err error) // called for an entry that was not copied
	skipped   func(path string) bool       // reports whether an entry is not to be sent; nil: all are
	progress  *Progress
	finished  func(path string) // called when an entry has arrived; may be nil

	room chan struct{} // semaphore of filesAhead entries

	mu     sync.Mutex
	cond   *sync.Cond
	files  map[uint32]*outgoing // guarded by mu: offered, by ID
	ready  []*outgoing          // guarded by mu: accepted, with pieces left
	lastID uint32               // guarded by mu
	walked bool                 // guarded by mu: everything was offered
	pace   *pace                // guarded by mu
	joined int                  // guarded by mu: streams
}

// An outgoing is an offered entry.
type outgoing struct {
	id     uint32
	path   string
	f      *os.File // nil: a directory or link
	size   uint64
	sparse bool
	sums   *table // the stream that sends a block sets its checksum
	had    map[uint64][]uint64

	// Guarded by sender.mu.
	next    uint64 // offset of the next piece
	pending int    // pieces in the hands of streams
	sent    uint64
	failed  bool
}

func newSender(s *session, from Files) *sender {
	x := &sender{s: s, from: from, slots: maxSlots, room: make(chan struct{}, filesAhead), files: make(map[uint32]*outgoing), pace: newPace(time.Now(), s.here)}
	x.cond = sync.NewCond(&x.mu)
	s.sit(true)
	// Streams that wait for a piece learn of the end.
	s.do(func() error {
		<-s.ctx.Done()
		x.mu.Lock()
		defer x.mu.Unlock()
		x.cond.Broadcast()
		return nil
	})
	return x
}

// walk offers the entries of the paths, and then sends finish.
func (x *sender) walk(paths []string) error {
	for _, p := range paths {
		f, err := x.from.open(p, unix.O_RDONLY)
		if err == nil {
			err = x.entry(f, topName(p))
		}
		if err != nil {
			if x.s.ctx.Err() != nil {
				return nil
			}
			x.complain(p, err)
		}
	}
	x.mu.Lock()
	x.walked = true
	x.mu.Unlock()
	return x.s.control.send(&finish{})
}

// topName is the name of a requested entry at the other side; empty: only its content is sent.
func topName(p string) string {
	switch base := path.Base(path.Clean("/" + p)); {
	case base == "/", path.Base(p) == ".", path.Base(p) == "..":
		return ""
	default:
		return base
	}
}

// complain reports an entry that is not copied, here and to the peer.
func (x *sender) complain(p string, err error) {
	err = plain(err)
	x.report(p, err)
	_ = x.s.control.send(&failed{Text: fmt.Sprintf("%s: %v", p, err)})
}

// plain returns an error without the path in it, which the caller prints.
func plain(err error) error {
	var p *fs.PathError
	if errors.As(err, &p) {
		return p.Err
	}
	return err
}

// entry offers an entry and everything below it. It closes f.
func (x *sender) entry(f *os.File, name string) error {
	info, err := f.Stat()
	if err != nil {
		f.Close()
		return err
	}
	switch {
	case info.Mode().IsRegular():
		return x.offer(f, name, info)
	case !info.IsDir():
		f.Close()
		return errors.New("it is neither a file nor a directory")
	case !x.recursive:
		f.Close()
		return errors.New("it is a directory: copy those with -r")
	}
	defer f.Close()
	// Also a directory of an earlier attempt: its attributes are set at the end of this one.
	if name != "" {
		if err := x.announce(&outgoing{path: name}, func(id uint32) message {
			return &directory{metaOf(id, name, info)}
		}); err != nil {
			return err
		}
	}
	return x.children(f, name)
}

// children offers the entries of a directory.
func (x *sender) children(dir *os.File, name string) error {
	names, err := dir.Readdirnames(-1)
	if err != nil {
		return err
	}
	slices.Sort(names)
	for _, child := range names {
		full := path.Join(name, child)
		err := x.child(dir, child, full)
		if x.s.ctx.Err() != nil {
			return nil
		}
		if err != nil {
			x.complain(full, err)
		}
	}
	return nil
}

func (x *sender) child(dir *os.File, child, full string) error {
	f, err := openBeneath(dir, child, unix.O_RDONLY|unix.O_NOFOLLOW, 0)
	if errors.Is(err, unix.ELOOP) {
		return x.link(dir, child, full)
	}
	if err != nil {
		return err
	}
	return x.entry(f, full)
}

// link offers a symbolic link.
func (x *sender) link(dir *os.File, child, full string) error {
	b := make([]byte, maxText+1)
	n, err := unix.Readlinkat(int(dir.Fd()), child, b)
	if err != nil {
		return err
	}
	if n > maxText {
		return errors.New("the symbolic link is too long")
	}
	if x.skip(full) {
		return nil
	}
	return x.announce(&outgoing{path: full}, func(id uint32) message {
		return &link{meta{ID: id, Path: full}, string(b[:n])}
	})
}

func (x *sender) skip(name string) bool { return x.skipped != nil && x.skipped(name) }

func metaOf(id uint32, name string, info fs.FileInfo) meta {
	return meta{ID: id, Path: name, Mode: uint32(info.Mode().Perm()), MTime: uint64(info.ModTime().UnixNano())}
}

// offer offers a file.
func (x *sender) offer(f *os.File, name string, info fs.FileInfo) error {
	size := uint64(info.Size())
	if size > maxFile {
		f.Close()
		return fmt.Errorf("a file of %d bytes: at most %d are possible", size, uint64(maxFile))
	}
	if x.skip(name) {
		x.progress.found(size, true)
		return f.Close()
	}
	o := &outgoing{path: name, f: f, size: size, sums: newTable(size), had: map[uint64][]uint64{}}
	if st, ok := info.Sys().(*unixStat); ok {
		o.sparse = uint64(st.Blocks)*512 < size
	}
	x.progress.found(size, false)
	return x.announce(o, func(id uint32) message {
		return &file{metaOf(id, name, info), size, o.sparse}
	})
}

// announce offers an entry as soon as filesAhead allows.
func (x *sender) announce(o *outgoing, say func(id uint32) message) error {
	select {
	case x.room <- struct{}{}:
	case <-x.s.ctx.Done():
		o.close()
		return nil
	}
	x.mu.Lock()
	x.lastID++
	o.id = x.lastID
	x.files[o.id] = o
	x.mu.Unlock()
	return x.s.control.send(say(o.id))
}

func (o *outgoing) close() {
	if o.f != nil {
		o.f.Close()
	}
}

// handle handles a message of the receiver.
func (x *sender) handle(m message) error {
	switch m := m.(type) {
	case *have:
		return x.known(m)
	case *accept:
		return x.accepted(m.ID)
	case *skip:
		return x.over(m.ID, nil, true)
	case *done:
		return x.over(m.ID, nil, false)
	case *failed:
		return x.over(m.ID, errors.New(m.Text), false)
	case *finished:
		x.mu.Lock()
		defer x.mu.Unlock()
		if len(x.files) > 0 || !x.walked {
			return violation("word that all is done, with %d entries under way", len(x.files))
		}
		return errFinished
	}
	return violation("%T, which a receiver does not send", m)
}

// known stores the checksums that the receiver has of a file.
func (x *sender) known(m *have) error {
	x.mu.Lock()
	defer x.mu.Unlock()
	o := x.files[m.ID]
	if o == nil || o.f == nil || m.First%sumsInMessage != 0 || m.First+uint64(len(m.Sums)) > blocks(o.size) {
		return violation("sums of blocks that there are not")
	}
	o.had[m.First/sumsInMessage] = m.Sums
	return nil
}

// hadSum returns the checksum of a block that the receiver has; 0: none.
func (o *outgoing) hadSum(block uint64) uint64 {
	if list := o.had[block/sumsInMessage]; block%sumsInMessage < uint64(len(list)) {
		return list[block%sumsInMessage]
	}
	return 0
}

func (x *sender) accepted(id uint32) error {
	x.mu.Lock()
	defer x.mu.Unlock()
	o := x.files[id]
	if o == nil || o.f == nil {
		return violation("that it accepts an entry that was not offered")
	}
	x.ready = append(x.ready, o)
	x.cond.Broadcast()
	return nil
}

// over ends an entry.
func (x *sender) over(id uint32, err error, skipped bool) error {
	x.mu.Lock()
	o := x.files[id]
	if o == nil {
		x.mu.Unlock()
		return violation("the end of an entry that was not offered")
	}
	delete(x.files, id)
	o.failed = true // no more pieces of it are sent
	if o.pending == 0 {
		o.close()
	}
	x.mu.Unlock()
	switch {
	case err != nil:
		x.report(o.path, err)
	case skipped:
		x.progress.kept(o.size)
	case x.finished != nil:
		x.finished(o.path)
	}
	<-x.room
	return nil
}

// close closes all open files at the end of the session.
func (x *sender) close() {
	for _, o := range x.files {
		o.close()
	}
}

// A piece is what a stream sends at a time.
type piece struct {
	o      *outgoing
	offset uint64
	length int
}

// take waits for the next piece for a stream; false: there is none.
func (x *sender) take(stream int) (piece, bool) {
	x.mu.Lock()
	defer x.mu.Unlock()
	for {
		for len(x.ready) > 0 && stream < x.pace.streams {
			o := x.ready[0]
			if p, ok := o.cut(x.pace.bytes()); ok {
				o.pending++
				return p, true
			}
			x.ready = x.ready[1:]
			if o.pending == 0 && !o.failed {
				x.s.do(func() error { return x.end(o) })
			}
		}
		if x.s.ctx.Err() != nil {
			return piece{}, false
		}
		x.cond.Wait()
	}
}

// cut returns the next piece of a file. It skips holes, unless the receiver has data there.
func (o *outgoing) cut(most int) (piece, bool) {
	if o.failed {
		return piece{}, false
	}
	for o.sparse && o.next < o.size && o.hadSum(o.next/blockSize) == 0 && hole(o.f, int64(o.next), int64(min(o.size-o.next, blockSize))) {
		at, found := nextData(o.f, int64(o.next))
		if len(o.had) > 0 { // block by block: the receiver may have the next
			o.next += blockSize
			continue
		}
		if !found {
			o.next = o.size
			break
		}
		o.next = uint64(at) / blockSize * blockSize
	}
	if o.next >= o.size {
		return piece{}, false
	}
	n := min(uint64(most), o.size-o.next)
	if o.sparse {
		end := uint64(nextHole(o.f, int64(o.next), int64(o.size)))
		n = min(n, max(blocks(end)*blockSize-o.next, blockSize))
	}
	p := piece{o, o.next, int(n)}
	o.next += n
	return p, true
}

// settle records the result of a piece.
func (x *sender) settle(p piece, sent int, err error) {
	x.mu.Lock()
	defer x.mu.Unlock()
	o := p.o
	o.pending--
	o.sent += uint64(sent)
	was := o.failed
	if err != nil && !was {
		o.failed = true
		x.s.do(func() error {
			return x.s.control.send(&failed{ID: o.id, Text: plain(err).Error()})
		})
	}
	switch {
	case o.pending > 0:
	case was:
		o.close()
	case err == nil && o.next >= o.size && !slices.Contains(x.ready, o):
		x.s.do(func() error { return x.end(o) })
	}
}

// end sends that a file was sent completely.
func (x *sender) end(o *outgoing) error {
	return x.s.control.send(&end{ID: o.id, Sent: o.sent, Digest: o.sums.digest()})
}

// stream sends pieces over one stream, of a size that suits the path (pace.go).
func (x *sender) stream(c conn) error {
	if err := c.attach(x.s.ctx, x.slots); err != nil {
		return err
	}
	x.mu.Lock()
	number := x.joined
	x.joined++
	x.mu.Unlock()
	for {
		s, err := c.buffer(x.s.ctx)
		if err != nil {
			return err
		}
		p, ok := x.take(number)
		if !ok {
			return nil
		}
		sent, err := x.piece(c, s, p)
		var broke *BrokenError
		if errors.As(err, &broke) {
			return err // the piece stays pending, so that end is not sent
		}
		if sent == 0 {
			c.unused(s)
		}
		x.settle(p, sent, err)
		slots, round := c.round()
		x.paced(sent, slots, round)
	}
}

// paced reports a piece to the pace.
func (x *sender) paced(sent, slots int, round time.Duration) {
	x.mu.Lock()
	defer x.mu.Unlock()
	was := x.pace.streams
	if x.pace.sent(time.Now(), sent, x.joined, slots, round); x.pace.streams > was {
		x.cond.Broadcast()
	}
}

// piece reads a piece into a slot, computes its checksums and posts it, unless the receiver has it.
func (x *sender) piece(c conn, s *slot, p piece) (sent int, err error) {
	data := s.data[:p.length]
	if err := readFull(p.o.f, data, int64(p.offset)); err != nil {
		return 0, err
	}
	h := header{id: p.o.id, offset: p.offset, length: uint32(p.length)}
	h.sum(data)
	first := p.offset / blockSize
	x.mu.Lock()
	for i := range blocks(uint64(p.length)) {
		p.o.sums.set(first+i, h.sums[i])
	}
	x.mu.Unlock()
	if p.o.has(first, data) {
		x.progress.kept(uint64(p.length))
		return 0, nil
	}
	h.put(s.head)
	if err := c.post(s, p.length); err != nil {
		return 0, err
	}
	x.progress.moved(p.length)
	return p.length, nil
}

// has reports whether the receiver has these blocks already.
func (o *outgoing) has(block uint64, data []byte) bool {
	if len(o.had) == 0 {
		return false
	}
	for len(data) > 0 {
		n := min(len(data), blockSize)
		sum := o.hadSum(block)
		if sum == 0 || sum != strongSum(data[:n]) {
			return false
		}
		block, data = block+1, data[n:]
	}
	return true
}
