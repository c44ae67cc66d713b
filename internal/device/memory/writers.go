package memory

import (
	"slices"
	"sync"
	"time"
)

// writers are the jobs that write to a process's foreign memory. After a program has
// deregistered memory or destroyed a queue pair, it may use the memory for something else. So
// these commands wait for the writers that began before.
type writers struct {
	mu      sync.Mutex
	last    uint64
	open    []uint64      // numbers of those under way, ascending
	changed chan struct{} // closed when one leaves; nil: nobody waits
}

// enter counts a job in.
func (s *Space) enter() uint64 {
	w := &s.writers
	w.mu.Lock()
	defer w.mu.Unlock()
	w.last++
	w.open = append(w.open, w.last)
	return w.last
}

// leave counts it out.
func (s *Space) leave(entry uint64) {
	w := &s.writers
	w.mu.Lock()
	defer w.mu.Unlock()
	i := slices.Index(w.open, entry)
	w.open = slices.Delete(w.open, i, i+1)
	if w.changed != nil {
		close(w.changed)
		w.changed = nil
	}
}

// Writing reports whether a job writes to the space now.
func (s *Space) Writing() bool {
	s.writers.mu.Lock()
	defer s.writers.mu.Unlock()
	return len(s.writers.open) > 0
}

// Quiesce waits until the jobs that write now have ended, but not longer than d.
func (s *Space) Quiesce(d time.Duration) {
	w := &s.writers
	w.mu.Lock()
	defer w.mu.Unlock()
	if len(w.open) == 0 {
		return
	}
	last := w.last
	t := time.NewTimer(d)
	defer t.Stop()
	for len(w.open) > 0 && w.open[0] <= last {
		if w.changed == nil {
			w.changed = make(chan struct{})
		}
		changed := w.changed
		w.mu.Unlock()
		select {
		case <-changed:
			w.mu.Lock()
		case <-t.C:
			w.mu.Lock()
			return
		}
	}
}
