package store

import (
	"bytes"
	"encoding/binary"
	"errors"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	bolt "go.etcd.io/bbolt"
)

// A Copy is the last known state of another store. Whoever follows that store applies changes with Advance and Replace.
// List and Watch read the copy, and never wait for the store.
//
// With a file the copy survives a restart. A goroutine writes the file behind the memory, several changes at a time:
// what is lost when the machine fails only makes the copy older. The file has Bolt's format, and in bucket state:
//
//	"heard"   when the store last answered, nanoseconds since 1970
//	"client"  this client's ID
type Copy struct {
	file  Bolt // its Memory is the copy; never committed to
	dirty map[string]struct{}
	heard time.Time // guarded by file.mu, as dirty
	id    string
	save  chan struct{} // there are changes to write
	// writing is held while the file is written, closed or opened. Lock order: writing, then file.mu.
	writing sync.Mutex
	lent    bool // the next daemon has the file, see Release; guarded by writing
	done    chan struct{}
	work    sync.WaitGroup
	once    sync.Once
	// failed is called when the file cannot be written; may be nil.
	failed func(error)
}

var (
	keyHeard  = []byte("heard")
	keyClient = []byte("client")
)

// OpenCopy opens the file of a copy, or makes it; without a path the copy is in memory only. Invalid entries of the
// file are left out and returned as problems. failed is called when the file cannot be written; the next change tries
// again.
func OpenCopy(path, id string, failed func(error)) (c *Copy, problems []error, err error) {
	c = &Copy{id: id, failed: failed, dirty: make(map[string]struct{}), save: make(chan struct{}, 1), done: make(chan struct{})}
	if path == "" {
		return c, nil, nil
	}
	c.file.path = path
	if err := prepare(path); err != nil {
		return nil, nil, err
	}
	if problems, err = c.file.open(); err != nil {
		return nil, nil, err
	}
	c.file.since = c.file.revision + 1
	if err := c.file.guard(c.introduce); err != nil {
		c.file.shut()
		return nil, nil, err
	}
	c.work.Go(c.write)
	return c, problems, nil
}

// introduce reads the time of the last answer and the client's ID, which is written once.
func (c *Copy) introduce() error {
	return c.file.db.Update(func(tx *bolt.Tx) error {
		state := tx.Bucket(bucketState)
		if b := state.Get(keyHeard); len(b) == 8 {
			c.heard = time.Unix(0, int64(binary.BigEndian.Uint64(b)))
		}
		if b := state.Get(keyClient); len(b) == len(c.id) {
			c.id = string(b)
			return nil
		}
		return state.Put(keyClient, []byte(c.id))
	})
}

// ID identifies this client to the store. It is the same after a restart.
func (c *Copy) ID() string { return c.id }

func (c *Copy) List(prefix string) ([]Entry, int64, error) { return c.file.Memory.List(prefix) }

func (c *Copy) Watch(prefix string, revision int64) Watcher {
	return c.file.Memory.Watch(prefix, revision)
}

// Get is the entry of a key; its revision is 0 if there is none.
func (c *Copy) Get(key string) Entry {
	c.file.mu.RLock()
	defer c.file.mu.RUnlock()
	return c.file.entries[key]
}

// Revision is that of the last change.
func (c *Copy) Revision() int64 {
	c.file.mu.RLock()
	defer c.file.mu.RUnlock()
	return c.file.revision
}

// Heard is the time of the last Hear.
func (c *Copy) Heard() time.Time {
	c.file.mu.RLock()
	defer c.file.mu.RUnlock()
	return c.heard
}

// Hear records an answer of the store. The file gets it with the next change, or with Save.
func (c *Copy) Hear(now time.Time) {
	c.file.mu.Lock()
	defer c.file.mu.Unlock()
	c.heard = now
}

// Save writes the file, even if nothing has changed.
func (c *Copy) Save() {
	select {
	case c.save <- struct{}{}:
	default:
	}
}

// Advance applies the changes of one commit. Deleting a missing key changes nothing. It reports whether anything has
// changed. A revision that is not above the last is raised.
func (c *Copy) Advance(revision int64, changes []Change) bool {
	c.file.mu.Lock()
	defer c.file.mu.Unlock()
	changes = slices.DeleteFunc(slices.Clone(changes), func(x Change) bool {
		_, there := c.file.entries[x.Key]
		return x.Deleted && !there
	})
	if len(changes) == 0 || c.file.closed {
		return false
	}
	slices.SortFunc(changes, func(a, b Change) int { return strings.Compare(a.Key, b.Key) })
	c.file.apply(max(revision, c.file.revision+1), changes)
	c.soil(changes)
	return true
}

// Replace replaces the copy by a list of the store. Watchers get the differences as one batch, with the list's
// revision. An entry with the same value differs, too, if it was written again since the copy's revision, because a
// condition on the old revision must fail.
func (c *Copy) Replace(entries []Entry, revision int64) {
	c.file.mu.Lock()
	defer c.file.mu.Unlock()
	if c.file.closed {
		return
	}
	revision = max(revision, c.file.revision+1)
	next := make(map[string]Entry, len(entries))
	var changes []Change
	for _, e := range entries {
		old := c.file.entries[e.Key]
		if old.Revision != 0 && bytes.Equal(old.Value, e.Value) && e.Revision <= c.file.revision {
			next[e.Key] = old
			continue
		}
		next[e.Key] = Entry{e.Key, e.Value, revision}
		changes = append(changes, Change{Key: e.Key, Value: e.Value})
	}
	for key := range c.file.entries {
		if _, still := next[key]; !still {
			changes = append(changes, Change{Key: key, Deleted: true})
		}
	}
	c.file.entries = next
	if len(changes) == 0 {
		return
	}
	slices.SortFunc(changes, func(a, b Change) int { return strings.Compare(a.Key, b.Key) })
	c.file.remember(revision, changes)
	c.soil(changes)
}

// soil marks the changed keys as dirty: the file does not have them yet. mu is held.
func (c *Copy) soil(changes []Change) {
	if c.file.path == "" {
		return
	}
	for i := range changes {
		c.dirty[changes[i].Key] = struct{}{}
	}
	c.Save()
}

// write flushes dirty entries to the file until Close.
func (c *Copy) write() {
	for {
		select {
		case <-c.save:
			c.flush()
		case <-c.done:
			c.flush()
			return
		}
	}
}

// Release writes the file and closes it, so that the next daemon can open it. The copy in memory continues; what
// changes until Reclaim is not written.
func (c *Copy) Release() error {
	c.flush()
	c.writing.Lock()
	defer c.writing.Unlock()
	if c.file.path == "" || c.lent {
		return nil
	}
	err := c.file.shut()
	c.file.db, c.lent = nil, true
	return err
}

// Reclaim undoes Release. The next daemon may have written to the file, so all of it is replaced by this copy.
func (c *Copy) Reclaim() error {
	c.writing.Lock()
	defer c.writing.Unlock()
	if !c.lent {
		return nil
	}
	if err := c.file.openFile(); err != nil {
		return err
	}
	c.lent = false
	c.file.mu.Lock()
	defer c.file.mu.Unlock()
	err := c.file.guard(func() error {
		return c.file.db.Update(func(tx *bolt.Tx) error {
			if err := tx.DeleteBucket(bucketEntries); err != nil {
				return err
			}
			if _, err := tx.CreateBucket(bucketEntries); err != nil {
				return err
			}
			return putAll(tx, slices.Collect(maps.Values(c.file.entries)), c.file.revision, c.heard)
		})
	})
	if err == nil {
		clear(c.dirty)
	}
	return err
}

// flush writes the dirty entries to the file. After an error, or while the file is lent, they stay dirty.
func (c *Copy) flush() {
	c.writing.Lock()
	defer c.writing.Unlock()
	if c.lent || c.file.path == "" {
		return
	}
	c.file.mu.Lock()
	dirty := c.dirty
	c.dirty = make(map[string]struct{})
	entries := make([]Entry, 0, len(dirty))
	for key := range dirty {
		entries = append(entries, Entry{Key: key, Value: c.file.entries[key].Value, Revision: c.file.entries[key].Revision})
	}
	revision, heard := c.file.revision, c.heard
	c.file.mu.Unlock()
	err := c.file.guard(func() error {
		if c.file.abandoned {
			return errors.New("it was damaged when it was written last")
		}
		return c.file.db.Update(func(tx *bolt.Tx) error { return putAll(tx, entries, revision, heard) })
	})
	if err == nil {
		return
	}
	c.file.mu.Lock()
	maps.Copy(c.dirty, dirty)
	c.file.mu.Unlock()
	if c.failed != nil {
		c.failed(err)
	}
}

// putAll writes entries, and deletes those without a revision.
func putAll(tx *bolt.Tx, entries []Entry, revision int64, heard time.Time) error {
	bucket, state := tx.Bucket(bucketEntries), tx.Bucket(bucketState)
	for _, e := range entries {
		var err error
		if e.Revision == 0 {
			err = bucket.Delete([]byte(e.Key))
		} else {
			err = bucket.Put([]byte(e.Key), append(binary.BigEndian.AppendUint64(nil, uint64(e.Revision)), e.Value...))
		}
		if err != nil {
			return err
		}
	}
	if err := state.Put(keyRevision, binary.BigEndian.AppendUint64(nil, uint64(revision))); err != nil || heard.IsZero() {
		return err
	}
	return state.Put(keyHeard, binary.BigEndian.AppendUint64(nil, uint64(heard.UnixNano())))
}

// Close writes the file for the last time. Watchers end with ErrClosed.
func (c *Copy) Close() (err error) {
	c.once.Do(func() {
		c.file.Memory.Close()
		close(c.done)
		c.work.Wait()
		err = c.file.shut()
	})
	return err
}
