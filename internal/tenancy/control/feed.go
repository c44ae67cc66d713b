package control

import "sync"

// A feed keeps the last items of a kind for its followers. A follower only holds a number. A slow follower costs
// nothing, and learns how many items it missed.
type feed[T any] struct {
	most    int // how many items are kept; all of those that are added at once
	mu      sync.Mutex
	first   uint64 // the number of items[0]
	items   []T
	changed chan struct{} // closed and replaced when items are added; nil: no follower waits
}

// add appends items and returns the number of the first.
func (f *feed[T]) add(items ...T) uint64 {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.addLocked(items)
}

func (f *feed[T]) addLocked(items []T) uint64 {
	number := f.first + uint64(len(f.items))
	if len(items) == 0 {
		return number
	}
	f.items = append(f.items, items...)
	// Dropping items one at a time would move all the others each time.
	if keep := max(f.most, len(items)); len(f.items) > keep+keep/4 {
		drop := len(f.items) - keep
		f.first += uint64(drop)
		f.items = append([]T(nil), f.items[drop:]...)
	}
	if f.changed != nil {
		close(f.changed)
		f.changed = nil
	}
	return number
}

// next is the number of the next item.
func (f *feed[T]) next() uint64 {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.first + uint64(len(f.items))
}

// after returns at most limit items from a number on, the number after them, how many were missed, and, if there are
// none, a channel to wait for.
func (f *feed[T]) after(number uint64, limit int) (items []T, next, missed uint64, wait <-chan struct{}) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if number < f.first {
		missed, number = f.first-number, f.first
	}
	if at := number - f.first; at < uint64(len(f.items)) {
		items = f.items[at:]
		items = append([]T(nil), items[:min(len(items), limit)]...)
		return items, number + uint64(len(items)), missed, nil
	}
	if f.changed == nil {
		f.changed = make(chan struct{})
	}
	return nil, number, missed, f.changed
}
