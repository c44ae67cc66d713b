package store

import (
	"context"
	"errors"
	"fmt"
	"strings"
)

// A Store keeps entries. Any goroutine may use it.
type Store interface {
	// List returns the entries whose keys begin with prefix, by key, and the revision of the list. Values must not be
	// changed.
	List(prefix string) ([]Entry, int64, error)
	// Watch returns the changes below prefix from a revision on, inclusive. From 0 on: those to come.
	Watch(prefix string, revision int64) Watcher
	// Commit makes all writes at one new revision, if all conditions hold; otherwise ok is false. It returns the
	// store's revision either way. After a return without error the writes survive the daemon and the machine.
	Commit(conditions []Condition, writes []Write) (revision int64, ok bool, err error)
	// Close closes the store. Watchers end with ErrClosed.
	Close() error
}

// An Entry is a key, its value and the revision at which it was written.
type Entry struct {
	Key      string
	Value    []byte
	Revision int64
}

// A Condition holds if the key was last written at the revision; 0: if it does not exist.
type Condition struct {
	Key      string
	Revision int64
}

// A Write puts a value, or deletes the key. Deleting a missing key changes nothing.
type Write struct {
	Key    string
	Value  []byte
	Delete bool
}

// A Change is one write that was made.
type Change struct {
	Key     string
	Value   []byte // nil if it was deleted
	Deleted bool
}

// A Batch is the changes of one commit, by key.
type Batch struct {
	Revision int64
	Changes  []Change
}

// A Watcher delivers changes. One goroutine uses it.
type Watcher interface {
	// Next waits for the next batch that has changes below the prefix.
	Next(ctx context.Context) (Batch, error)
}

var (
	// ErrCompacted: the requested revision, or the position of a slow watcher, is no longer known. List again.
	ErrCompacted = errors.New("the changes since that revision are no longer known")
	// ErrClosed: the store was closed.
	ErrClosed = errors.New("the store is closed")
)

const (
	// History is how many changes are kept for watchers; the last commit is kept whole.
	History = 1000
	// MaxKey and MaxValue bound an entry: etcd limits requests to 1.5 MB.
	MaxKey   = 1 << 10
	MaxValue = 1 << 20
)

// Reserved is the prefix of keys that a store uses itself.
const Reserved = "~"

// Check returns what is wrong with a commit by itself.
func Check(conditions []Condition, writes []Write) error {
	seen := make(map[string]struct{}, len(writes))
	for i := range writes {
		w := &writes[i]
		if err := checkEntry(w.Key, w.Value); err != nil {
			return err
		}
		if _, twice := seen[w.Key]; twice {
			return fmt.Errorf("key %q is written twice in one commit", w.Key)
		}
		seen[w.Key] = struct{}{}
	}
	for _, c := range conditions {
		if err := checkEntry(c.Key, nil); err != nil {
			return err
		}
	}
	return nil
}

func checkEntry(key string, value []byte) error {
	switch {
	case key == "":
		return errors.New("an empty key")
	case len(key) > MaxKey:
		return fmt.Errorf("key %.40q… has %d bytes, at most %d fit", key, len(key), MaxKey)
	case strings.HasPrefix(key, Reserved):
		return fmt.Errorf("key %.40q: keys that begin with %s are the store's own", key, Reserved)
	case strings.IndexByte(key, 0) >= 0:
		return fmt.Errorf("key %q has a zero byte", key)
	case len(value) > MaxValue:
		return fmt.Errorf("the value of %q has %d bytes, at most %d fit", key, len(value), MaxValue)
	}
	return nil
}
