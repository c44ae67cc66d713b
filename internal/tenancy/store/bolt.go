package store

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"runtime/debug"
	"syscall"
	"time"

	bolt "go.etcd.io/bbolt"
	bolterrors "go.etcd.io/bbolt/errors"
)

// Bolt is a store in a file. The first commit makes the file, so that a daemon without declared objects leaves no file
// behind.
//
//	bucket entries   key → revision (8 bytes), value
//	bucket state     "revision" → 8 bytes, "format" → 1
type Bolt struct {
	Memory
	path string
	db   *bolt.DB // nil: there is no file yet. guarded by Memory.mu
	// broken is why nothing can be written any more; guarded by Memory.mu.
	broken error
	// released: the next daemon has the file, see Release; guarded by Memory.mu.
	released bool
	// abandoned: bbolt panicked, and may hold its own locks; guarded by Memory.mu.
	abandoned bool
}

var (
	_ Store = (*Bolt)(nil)

	bucketEntries = []byte("entries")
	bucketState   = []byte("state")
	keyRevision   = []byte("revision")
	keyFormat     = []byte("format")
)

// format is the format of the file. A file of a higher format is refused.
const format = 1

// lockTime is how long Open waits for the file's lock, which a killed daemon may still hold for a moment. Tests wait
// less.
var lockTime = 2 * time.Second

// Open opens the store in a file. Invalid entries of the file are left out and returned as problems; the store is
// usable nevertheless.
func Open(path string) (s *Bolt, problems []error, err error) {
	s = &Bolt{path: path}
	s.keep = s.write
	switch _, err := os.Lstat(path); {
	case errors.Is(err, fs.ErrNotExist):
		return s, nil, nil
	case err != nil:
		return nil, nil, fmt.Errorf("the store: %w", err)
	}
	if problems, err = s.open(); err != nil {
		return nil, nil, err
	}
	s.since = s.revision + 1
	return s, problems, nil
}

// openFile opens the file, for reading only if its file system is read-only.
func (s *Bolt) openFile() error {
	options := bolt.Options{Timeout: lockTime, FreelistType: bolt.FreelistMapType, OpenFile: openPlain}
	err := s.guard(func() (err error) {
		s.db, err = bolt.Open(s.path, 0o600, &options)
		if options.ReadOnly = errors.Is(err, syscall.EROFS); options.ReadOnly {
			s.db, err = bolt.Open(s.path, 0o600, &options)
		}
		return err
	})
	if err != nil {
		s.db = nil
	}
	return err
}

// open opens the file and reads it.
func (s *Bolt) open() (problems []error, err error) {
	err = s.openFile()
	if errors.Is(err, bolterrors.ErrTimeout) {
		return nil, fmt.Errorf("the store %s is open in another daemon: stop that one, or name another file with --store", s.path)
	}
	if err == nil {
		if err = s.guard(func() error { problems, err = s.load(); return err }); err != nil {
			s.shut()
		}
	}
	if err != nil {
		s.db = nil
		return nil, fmt.Errorf("the store %s cannot be read: %w; rename it to start with an empty store, then run vrdma store import with the last export", s.path, err)
	}
	return problems, nil
}

// create makes the file for the first commit. Memory.mu is held.
func (s *Bolt) create() error {
	if err := prepare(s.path); err != nil {
		return fmt.Errorf("the store cannot be made: %w; name another file with --store", err)
	}
	if _, err := s.open(); err != nil {
		return err
	}
	if s.revision > 0 {
		s.broken = fmt.Errorf("another daemon has written to the store %s meanwhile: restart this one, or give it another file with --store", s.path)
		s.revision, s.entries = 0, nil
		return s.broken
	}
	return nil
}

// prepare makes the directory.
func prepare(path string) error {
	dir := filepath.Dir(path)
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	if _, err := os.Lstat(path); !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	// The name must survive a failure of the machine, as the contents do.
	f, err := openPlain(path, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return err
	}
	f.Close()
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	defer d.Close()
	return d.Sync()
}

// openPlain opens a file of the daemon's user: no link, and not writable for other users.
func openPlain(path string, flag int, mode os.FileMode) (*os.File, error) {
	f, err := os.OpenFile(path, flag|syscall.O_NOFOLLOW|syscall.O_CLOEXEC|syscall.O_NONBLOCK, mode)
	if err != nil {
		return nil, err
	}
	info, err := f.Stat()
	if err == nil {
		st, known := info.Sys().(*syscall.Stat_t)
		switch {
		case !info.Mode().IsRegular():
			err = fmt.Errorf("%s is not a regular file", path)
		case known && int(st.Uid) != os.Geteuid():
			err = fmt.Errorf("%s belongs to user %d and not to the daemon's, %d", path, st.Uid, os.Geteuid())
		case info.Mode().Perm()&0o022 != 0:
			err = fmt.Errorf("%s has mode %04o: others can write to it; chmod 0600 it if you trust what it says", path, info.Mode().Perm())
		}
	}
	if err != nil {
		f.Close()
		return nil, err
	}
	return f, nil
}

// guard runs f, which uses bbolt. bbolt panics on damaged pages, and faults on a truncated file.
func (s *Bolt) guard(f func() error) (err error) {
	defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
	defer func() {
		if p := recover(); p != nil {
			s.abandoned = true
			err = fmt.Errorf("the file is damaged: %v", p)
		}
	}()
	return f()
}

// load reads all entries. It writes only to a file that has none yet: on a full disk, or at the end of a quota, a write can fail
// although it changes nothing.
func (s *Bolt) load() (problems []error, err error) {
	empty := false
	err = s.db.View(func(tx *bolt.Tx) error {
		if err := checkPages(tx); err != nil {
			return err
		}
		state, entries := tx.Bucket(bucketState), tx.Bucket(bucketEntries)
		if empty = state == nil || entries == nil || state.Get(keyFormat) == nil; empty {
			return nil
		}
		problems, err = s.read(state, entries)
		return err
	})
	if err != nil || !empty {
		return problems, err
	}
	err = s.db.Update(func(tx *bolt.Tx) error {
		state, err := tx.CreateBucketIfNotExists(bucketState)
		if err != nil {
			return err
		}
		entries, err := tx.CreateBucketIfNotExists(bucketEntries)
		if err != nil {
			return err
		}
		if state.Get(keyFormat) == nil {
			if err := state.Put(keyFormat, []byte{format}); err != nil {
				return err
			}
		}
		problems, err = s.read(state, entries)
		return err
	})
	return problems, err
}

// checkPages returns an error if a page that is in use says that it extends beyond the last page. With the next commit bbolt would release
// that many pages one by one, up to four billion.
func checkPages(tx *bolt.Tx) error {
	db := tx.DB()
	if db.IsReadOnly() { // bbolt has not loaded which pages are in use, and no commit follows
		return nil
	}
	end := int(tx.Size()) / db.Info().PageSize
	for id := 0; id < end; {
		p, err := tx.Page(id)
		if err != nil || p == nil {
			return err
		}
		id++
		if p.Type == "free" {
			continue
		}
		if id += p.OverflowCount; id > end {
			return fmt.Errorf("the file is damaged: page %d has %d more behind it, and the file has %d pages", p.ID, p.OverflowCount, end)
		}
	}
	return nil
}

// read reads the entries of the two buckets.
func (s *Bolt) read(state, entries *bolt.Bucket) (problems []error, err error) {
	if b := state.Get(keyFormat); len(b) != 1 || b[0] > format {
		return nil, fmt.Errorf("it has format %v, this version reads %d: it was written by a newer vrdma", b, format)
	}
	if b := state.Get(keyRevision); len(b) == 8 {
		s.revision = int64(binary.BigEndian.Uint64(b))
	}
	if s.revision < 0 {
		s.revision = 0
	}
	s.entries = make(map[string]Entry)
	err = entries.ForEach(func(k, v []byte) error {
		e, err := decode(k, v)
		if err != nil {
			problems = append(problems, err)
			return nil
		}
		// The store would use a revision above its own again.
		s.revision = max(s.revision, e.Revision)
		s.entries[e.Key] = e
		return nil
	})
	return problems, err
}

// ReadOnly reports whether the file was opened for reading only.
func (s *Bolt) ReadOnly() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.db != nil && s.db.IsReadOnly()
}

// writable opens a file again that was opened for reading only. Memory.mu is held.
func (s *Bolt) writable() error {
	before := s.revision
	err := s.shut()
	if err == nil {
		_, err = s.open()
	}
	if err == nil && s.revision != before {
		err = fmt.Errorf("another daemon has written to the store %s meanwhile: restart this one", s.path)
	}
	if err != nil {
		s.broken = err
		return err
	}
	if s.db.IsReadOnly() {
		return fmt.Errorf("the store %s is on a read-only file system; nothing was changed", s.path)
	}
	return nil
}

// decode reads an entry of the file; k and v are bbolt's, and v is nil for a bucket.
func decode(k, v []byte) (Entry, error) {
	if len(v) < 8 {
		return Entry{}, fmt.Errorf("%.80q is not an entry: it has no revision", k)
	}
	e := Entry{string(k), bytes.Clone(v[8:]), int64(binary.BigEndian.Uint64(v))}
	// Half of the range stays free, so that the store can count on from any of these.
	if e.Revision <= 0 || e.Revision > 1<<62 {
		return e, fmt.Errorf("%.80q is not an entry: its revision is %d", k, e.Revision)
	}
	return e, checkEntry(e.Key, e.Value)
}

// write writes a commit to the file. Memory.mu is held.
func (s *Bolt) write(revision int64, changes []Change) error {
	if s.broken != nil {
		return s.broken
	}
	if s.released {
		return errors.New("the daemon is being upgraded: try again in a moment")
	}
	if s.db == nil {
		if err := s.create(); err != nil {
			return err
		}
	}
	if s.db.IsReadOnly() {
		if err := s.writable(); err != nil {
			return err
		}
	}
	err := s.guard(func() error {
		return s.db.Update(func(tx *bolt.Tx) error {
			entries := tx.Bucket(bucketEntries)
			number := binary.BigEndian.AppendUint64(nil, uint64(revision))
			for _, c := range changes {
				var err error
				if c.Deleted {
					err = entries.Delete([]byte(c.Key))
				} else {
					err = entries.Put([]byte(c.Key), append(number[:8:8], c.Value...))
				}
				if err != nil {
					return err
				}
			}
			return tx.Bucket(bucketState).Put(keyRevision, number)
		})
	})
	if err == nil {
		return nil
	}
	// A full disk leaves the file as it was, and there may be space later. If the last step failed, the file may have
	// the commit or not, and only opening it again tells.
	if s.abandoned || s.fileRevision() != revision-1 {
		s.broken = fmt.Errorf("the store cannot be written to any more: %w; restart the daemon", err)
		return s.broken
	}
	return fmt.Errorf("the store: %w; nothing was changed", err)
}

// fileRevision is the revision of the file; -1: it is not known.
func (s *Bolt) fileRevision() (revision int64) {
	revision = -1
	s.guard(func() error {
		return s.db.View(func(tx *bolt.Tx) error {
			revision = 0
			if b := tx.Bucket(bucketState).Get(keyRevision); len(b) == 8 {
				revision = int64(binary.BigEndian.Uint64(b))
			}
			return nil
		})
	})
	return revision
}

// Release closes the file, so that the next daemon can open it. Until Reclaim nothing can be written.
func (s *Bolt) Release() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.abandoned {
		return s.broken
	}
	err := s.shut()
	s.db, s.released = nil, true
	return err
}

// Reclaim undoes Release: the next daemon has not written to the file.
func (s *Bolt) Reclaim() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.released = false
	if _, err := os.Lstat(s.path); errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	before := s.revision
	_, err := s.open()
	if err == nil && s.revision != before {
		err = fmt.Errorf("another daemon has written to the store %s meanwhile: restart this one", s.path)
	}
	if err != nil {
		s.broken = err
	}
	return err
}

// Close closes the file.
func (s *Bolt) Close() error {
	s.mu.Lock()
	closed := s.closed
	s.mu.Unlock()
	if closed {
		return nil
	}
	s.Memory.Close()
	return s.shut()
}

// shut closes the file, unless bbolt might deadlock.
func (s *Bolt) shut() error {
	if s.db == nil || s.abandoned {
		return nil
	}
	return s.guard(s.db.Close)
}
