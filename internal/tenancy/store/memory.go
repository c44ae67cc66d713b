package store

import (
	"bytes"
	"context"
	"slices"
	"strings"
	"sync"
)

// Memory is a store without a file, and the in-memory part of Bolt. The zero value is empty and ready.
type Memory struct {
	mu       sync.RWMutex
	closed   bool
	revision int64
	entries  map[string]Entry
	// The last commits, oldest first, and the number of their changes. Every commit at since or later is here.
	history []Batch
	kept    int
	since   int64
	changed chan struct{} // closed and replaced with every commit; nil: no watcher waits
	// keep makes a commit durable before it is visible; may be nil.
	keep func(revision int64, changes []Change) error
}

var _ Store = (*Memory)(nil)

func (m *Memory) List(prefix string) ([]Entry, int64, error) {
	m.mu.RLock()
	defer m.mu.RUnlock()
	if m.closed {
		return nil, 0, ErrClosed
	}
	out := []Entry{}
	for key, e := range m.entries {
		if strings.HasPrefix(key, prefix) {
			out = append(out, e)
		}
	}
	slices.SortFunc(out, func(a, b Entry) int { return strings.Compare(a.Key, b.Key) })
	return out, m.revision, nil
}

func (m *Memory) Commit(conditions []Condition, writes []Write) (int64, bool, error) {
	if err := Check(conditions, writes); err != nil {
		return 0, false, err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.closed {
		return 0, false, ErrClosed
	}
	for _, c := range conditions {
		if m.entries[c.Key].Revision != c.Revision {
			return m.revision, false, nil
		}
	}
	changes := make([]Change, 0, len(writes))
	for _, w := range writes {
		if w.Delete {
			if _, there := m.entries[w.Key]; there {
				changes = append(changes, Change{Key: w.Key, Deleted: true})
			}
			continue
		}
		changes = append(changes, Change{Key: w.Key, Value: bytes.Clone(w.Value)})
	}
	if len(changes) == 0 {
		return m.revision, true, nil
	}
	slices.SortFunc(changes, func(a, b Change) int { return strings.Compare(a.Key, b.Key) })
	if m.keep != nil {
		if err := m.keep(m.revision+1, changes); err != nil {
			return m.revision, false, err
		}
	}
	m.apply(m.revision+1, changes)
	return m.revision, true, nil
}

// apply applies changes at a new revision. mu is held.
func (m *Memory) apply(revision int64, changes []Change) {
	if m.entries == nil {
		m.entries = make(map[string]Entry)
	}
	for _, c := range changes {
		if c.Deleted {
			delete(m.entries, c.Key)
		} else {
			m.entries[c.Key] = Entry{c.Key, c.Value, revision}
		}
	}
	m.remember(revision, changes)
}

// remember makes a revision the store's, and tells watchers of its changes. mu is held.
func (m *Memory) remember(revision int64, changes []Change) {
	m.revision = revision
	m.history = append(m.history, Batch{revision, changes})
	m.kept += len(changes)
	drop := 0
	for ; m.kept > History && drop < len(m.history)-1; drop++ {
		m.kept -= len(m.history[drop].Changes)
		m.since = m.history[drop].Revision + 1
	}
	m.history = slices.Delete(m.history, 0, drop) // clears what it leaves behind
	m.wake()
}

// wake wakes the watchers. mu is held.
func (m *Memory) wake() {
	if m.changed != nil {
		close(m.changed)
		m.changed = nil
	}
}

func (m *Memory) Close() error {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.closed = true
	m.wake()
	return nil
}

func (m *Memory) Watch(prefix string, revision int64) Watcher {
	m.mu.RLock()
	defer m.mu.RUnlock()
	if revision <= 0 {
		revision = m.revision + 1
	}
	return &watcher{m, prefix, revision}
}

// A watcher holds only its position in the history. A slow watcher costs nothing, until its position is dropped.
type watcher struct {
	m      *Memory
	prefix string
	next   int64
}

func (w *watcher) Next(ctx context.Context) (Batch, error) {
	for {
		b, wait, err := w.look()
		if wait == nil {
			return b, err
		}
		select {
		case <-wait:
		case <-ctx.Done():
			return Batch{}, ctx.Err()
		}
	}
}

// look returns the next batch, or what to wait for.
func (w *watcher) look() (Batch, <-chan struct{}, error) {
	m := w.m
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.closed {
		return Batch{}, nil, ErrClosed
	}
	if w.next < m.since {
		return Batch{}, nil, ErrCompacted
	}
	first, _ := slices.BinarySearchFunc(m.history, w.next, func(b Batch, revision int64) int { return int(b.Revision - revision) })
	for _, b := range m.history[first:] {
		w.next = b.Revision + 1
		if found := below(b.Changes, w.prefix); len(found) > 0 {
			return Batch{b.Revision, found}, nil, nil
		}
	}
	if m.changed == nil {
		m.changed = make(chan struct{})
	}
	return Batch{}, m.changed, nil
}

// below are the changes of keys that begin with prefix. Changes are sorted by key.
func below(changes []Change, prefix string) []Change {
	first, _ := slices.BinarySearchFunc(changes, prefix, func(c Change, p string) int { return strings.Compare(c.Key, p) })
	n := first
	for n < len(changes) && strings.HasPrefix(changes[n].Key, prefix) {
		n++
	}
	return changes[first:n:n]
}
