package meter

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"os"
	"path/filepath"
	"slices"
	"time"

	"golang.org/x/sys/unix"
)

// A book is the usage file, which is append-only:
//
//	"vrdma-usage 1\n" │ frame │ frame │ …
//	frame: length, 4 bytes │ CRC-32C of what follows, 4 bytes │ entries
//
// A flush is one frame, so that it is complete or absent. An entry is the current value of a total or a record; later
// entries replace earlier ones. The first entry names the columns.
//
// When the file has grown to several times its contents it is rewritten beside itself and renamed. A crash at any
// moment leaves the old file or the new one, and the last frame complete or with a wrong checksum.
type book struct {
	path string
	f    *os.File
	lock *os.File // held by a daemon; nil while lazy, and while it cannot be made
	size int64    // length of the complete frames, in bytes
	base int64    // size after the last rewrite
	lazy bool     // the file does not exist yet: it is created with the first tenant other than the default one
}

const (
	bookHead = "vrdma-usage 1\n"
	// mostFrame bounds the length of a frame that is accepted.
	mostFrame = 1 << 20
	// mostBook bounds how much of a file is read: the meter never writes more.
	mostBook = 64 << 20
	// mostHeld bounds the totals and records that are accepted.
	mostHeld = 400_000
	// The file is rewritten when it is longer than leastGrowth and than growth times its length after the last rewrite.
	growth      = 4
	leastGrowth = 256 << 10
)

// The first byte of entries.
const (
	entryColumns = 'C'
	entryTotal   = 'T'
	entryRecord  = 'R'
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// Open makes a meter that continues where the file at path ends, and makes the file if there is none.
// If lazy, Flush makes the file when there is a tenant other than the default one: a daemon for which
// nothing was declared leaves nothing behind. A file with a part that cannot be read is kept as
// PATH.damaged, and damage says so. A file that cannot be written, because the disk is full or
// read-only, is no error: the meter counts in memory, Unwritten says since when, and every Flush
// tries again.
func Open(path string, lazy bool, now time.Time) (m *Meter, damage error, err error) {
	b := &book{path: path}
	m = New()
	m.book, m.path = b, path
	if _, err := os.Lstat(path); lazy && errors.Is(err, os.ErrNotExist) {
		b.lazy = true
		return m, nil, nil
	}
	if err := b.acquire(); err != nil && !noRoom(err) {
		return nil, nil, err
	}
	defer func() {
		if err != nil {
			b.release()
		}
	}()
	if damage, err = m.restore(path); err != nil {
		return nil, nil, err
	}
	m.rollUp(now)
	for _, t := range m.totals {
		t.changed = false
	}
	if b.lock == nil || m.rewrite() != nil {
		m.unwritten = time.Now()
	}
	return m, damage, nil
}

// noRoom reports whether err says that the file system takes no data at the moment.
func noRoom(err error) bool {
	return errors.Is(err, unix.ENOSPC) || errors.Is(err, unix.EDQUOT) || errors.Is(err, unix.EROFS)
}

// acquire makes sure that no other daemon writes to the file. It makes the directory if there is none.
func (b *book) acquire() error {
	if err := os.MkdirAll(filepath.Dir(b.path), 0o700); err != nil {
		return fmt.Errorf("the directory of the usage file: %w", err)
	}
	path := b.path + ".lock"
	lock, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR|unix.O_NOFOLLOW, 0o600)
	if err != nil && noRoom(err) {
		// The lock of an earlier daemon can be taken on a read-only file system, too.
		if earlier, e := os.OpenFile(path, os.O_RDONLY|unix.O_NOFOLLOW, 0); e == nil {
			lock, err = earlier, nil
		}
	}
	if err != nil {
		return fmt.Errorf("the usage file: %w", err)
	}
	if err := unix.Flock(int(lock.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		lock.Close()
		return fmt.Errorf("the usage file %s belongs to another daemon (%w): choose another with --usage", b.path, err)
	}
	b.lock = lock
	return nil
}

// vanished reports whether the open file or the lock has no longer its name: somebody has removed the directory.
func (b *book) vanished() bool {
	return gone(b.f, b.path) || gone(b.lock, b.path+".lock")
}

// gone reports whether an open file is no longer what a path names.
func gone(f *os.File, path string) bool {
	if f == nil {
		return false
	}
	is, err := f.Stat()
	if err != nil {
		return false
	}
	at, err := os.Lstat(path)
	return errors.Is(err, os.ErrNotExist) || err == nil && !os.SameFile(is, at)
}

// release undoes acquire.
func (b *book) release() {
	b.close()
	if b.lock != nil {
		b.lock.Close()
		b.lock = nil
	}
}

// restore reads the file at path, if there is one.
func (m *Meter) restore(path string) (damage, err error) {
	f, err := os.OpenFile(path, os.O_RDONLY|unix.O_NOFOLLOW, 0)
	if errors.Is(err, os.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("the usage file: %w", err)
	}
	defer f.Close()
	data, err := io.ReadAll(io.LimitReader(f, mostBook))
	if err != nil {
		return nil, fmt.Errorf("the usage file: %w", err)
	}
	good, torn := m.load(data)
	if good == len(data) || torn {
		return nil, nil
	}
	damage = fmt.Errorf("the usage file %s cannot be read beyond byte %d of %d: the rest is lost, and the file is kept as %s.damaged", path, good, len(data), path)
	if err := os.Rename(path, path+".damaged"); err != nil {
		return nil, fmt.Errorf("the usage file: %w", err)
	}
	return damage, nil
}

// load applies the frames of data up to the first incomplete one. It returns the number of bytes, and whether the rest
// looks like a frame that was being written at a crash: nothing follows it.
func (m *Meter) load(data []byte) (good int, torn bool) {
	rest, ok := bytes.CutPrefix(data, []byte(bookHead))
	if !ok {
		return 0, len(data) < len(bookHead) && bytes.HasPrefix([]byte(bookHead), data)
	}
	var columns []Column
	for {
		good = len(data) - len(rest)
		if len(rest) < 8 {
			return good, true
		}
		n := int(binary.LittleEndian.Uint32(rest))
		if n > mostFrame {
			return good, false
		}
		if n > len(rest)-8 {
			return good, true
		}
		body := rest[8 : 8+n]
		if crc32.Checksum(body, castagnoli) != binary.LittleEndian.Uint32(rest[4:]) {
			return good, false
		}
		changes, ok := parse(body, &columns)
		if !ok || len(m.records)+len(m.totals)+len(changes) > mostHeld {
			return good, false
		}
		for _, c := range changes {
			m.restoreEntry(&c)
		}
		rest = rest[8+n:]
	}
}

func (m *Meter) restoreEntry(e *entry) {
	if e.record {
		u := e.usage
		m.records[e.at] = &u
		return
	}
	m.totals[e.at.Key] = &total{usage: e.usage}
}

// Flush writes the changes since the last Flush, those included that it could not write.
func (m *Meter) Flush() error {
	m.file.Lock()
	defer m.file.Unlock()
	err := m.write()
	m.mu.Lock()
	defer m.mu.Unlock()
	if err == nil {
		m.unwritten = time.Time{}
	} else if m.unwritten.IsZero() {
		m.unwritten = time.Now()
	}
	return err
}

// Unwritten returns since when the file could not be written; zero: it is up to date.
func (m *Meter) Unwritten() time.Time {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.unwritten
}

// Path returns the path of the usage file, which may not exist yet; "": nothing is stored.
func (m *Meter) Path() string { return m.path }

// write writes what has changed. file is held.
func (m *Meter) write() error {
	m.mu.Lock()
	if m.book == nil || m.book.lazy && !m.declared() {
		defer m.mu.Unlock()
		if m.due(m.latest) {
			m.rollUp(m.latest)
		}
		m.dirty, m.fresh = false, m.fresh[:0]
		return nil
	}
	rolled := m.due(m.latest) && m.rollUp(m.latest)
	entries := m.changes()
	m.mu.Unlock()
	b := m.book
	if b.vanished() {
		b.release() // what is written to a file without a name is lost
	}
	if b.lock == nil {
		if err := b.acquire(); err != nil {
			return err // Flush tries again in a second, and then writes everything
		}
		b.lazy = false
	}
	if rolled || b.f == nil || b.size > max(growth*b.base, leastGrowth) {
		return m.rewrite()
	}
	if len(entries) == 0 {
		return nil
	}
	if err := b.append(frames(false, entries)); err != nil {
		b.close() // the next flush rewrites the file
		m.mu.Lock()
		m.dirty = true
		m.mu.Unlock()
		return fmt.Errorf("the usage file: %w", err)
	}
	return nil
}

// declared reports whether there is a declared tenant. mu is held.
func (m *Meter) declared() bool {
	for k := range m.totals {
		if k.Tenant != System && k.Tenant != defaultTenant {
			return true
		}
	}
	return false
}

// changes are the totals that have changed since the last flush, each with its record of the minute. mu is held.
func (m *Meter) changes() (out []entry) {
	if !m.dirty {
		return nil
	}
	m.dirty = false
	for k, t := range m.totals {
		if !t.changed {
			continue
		}
		t.changed = false
		out = append(out, entry{at: recordKey{Key: k}, usage: t.usage})
		for _, at := range m.fresh {
			if u := m.records[recordKey{k, at, minute}]; u != nil {
				out = append(out, entry{record: true, at: recordKey{k, at, minute}, usage: *u})
			}
		}
	}
	m.fresh = m.fresh[:0]
	return out
}

// all is all totals and records. mu is held.
func (m *Meter) all() (out []entry) {
	out = make([]entry, 0, len(m.totals)+len(m.records))
	for k, t := range m.totals {
		t.changed = false
		out = append(out, entry{at: recordKey{Key: k}, usage: t.usage})
	}
	for at, u := range m.records {
		out = append(out, entry{record: true, at: at, usage: *u})
	}
	m.dirty, m.fresh = false, m.fresh[:0]
	return out
}

// rewrite replaces the usage file by one with the current totals and records. m.file is held.
func (m *Meter) rewrite() error {
	m.mu.Lock()
	entries := m.all()
	m.mu.Unlock()
	err := os.MkdirAll(filepath.Dir(m.book.path), 0o700) // it may have vanished
	if err == nil {
		err = m.book.replace(frames(true, entries))
	}
	if err != nil {
		err = fmt.Errorf("the usage file: %w", err)
		m.book.close()
		m.mu.Lock()
		m.dirty = true
		m.mu.Unlock()
	}
	return err
}

// append writes frames. After a crash each is complete or ignored.
func (b *book) append(list [][]byte) error {
	all := slices.Concat(list...)
	if _, err := b.f.WriteAt(all, b.size); err != nil {
		return err
	}
	if err := unix.Fdatasync(int(b.f.Fd())); err != nil {
		return err
	}
	b.size += int64(len(all))
	return nil
}

// replace replaces the file by one with these frames.
func (b *book) replace(list [][]byte) error {
	next := b.path + ".new"
	if err := os.Remove(next); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	f, err := os.OpenFile(next, os.O_CREATE|os.O_EXCL|os.O_RDWR, 0o600)
	if err != nil {
		return err
	}
	n := &book{f: f}
	err = n.append(append([][]byte{[]byte(bookHead)}, list...))
	if err == nil {
		err = os.Rename(next, b.path)
	}
	if err != nil {
		f.Close()
		os.Remove(next)
		return err
	}
	b.close()
	b.f, b.size, b.base = f, n.size, n.size
	return syncDir(filepath.Dir(b.path))
}

func syncDir(dir string) error {
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	defer d.Close()
	return d.Sync()
}

func (b *book) close() {
	if b.f != nil {
		b.f.Close()
		b.f = nil
	}
}

// Close writes what is left and closes the file.
func (m *Meter) Close() error {
	err := m.Flush()
	m.file.Lock()
	defer m.file.Unlock()
	if m.book != nil {
		m.book.release()
		m.book = nil
	}
	return err
}

// Release writes what has changed, and closes the file, so that the next daemon can open it. Until Reclaim the meter
// counts in memory.
func (m *Meter) Release() error {
	err := m.Flush()
	m.file.Lock()
	defer m.file.Unlock()
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.book != nil {
		m.book.release()
		m.lent, m.book = m.book, nil
	}
	return err
}

// Reclaim undoes Release.
func (m *Meter) Reclaim() error {
	m.file.Lock()
	defer m.file.Unlock()
	b := m.lent
	if b == nil {
		return nil
	}
	if !b.lazy {
		if err := b.acquire(); err != nil {
			return err
		}
	}
	m.mu.Lock()
	m.lent, m.book, m.dirty = nil, b, true
	m.mu.Unlock()
	if b.lazy {
		return nil
	}
	return m.rewrite()
}
