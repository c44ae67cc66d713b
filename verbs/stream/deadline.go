package stream

import (
	"sync"
	"time"
)

// A deadline is a point in time that can be changed while goroutines wait for it.
type deadline struct {
	mu    sync.Mutex
	timer *time.Timer
	done  chan struct{} // closed when the deadline expires
}

func newDeadline() deadline { return deadline{done: make(chan struct{})} }

// set changes the deadline; zero means none.
func (d *deadline) set(t time.Time) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.timer != nil {
		d.timer.Stop()
		d.timer = nil
	}
	past := isClosed(d.done)
	left := time.Until(t)
	switch {
	case t.IsZero() || left > 0:
		if past {
			d.done = make(chan struct{})
		}
		if !t.IsZero() {
			done := d.done
			d.timer = time.AfterFunc(left, func() { d.expire(done) })
		}
	case !past:
		close(d.done)
	}
}

// expire wakes the waiting goroutines, unless the deadline has been changed meanwhile.
func (d *deadline) expire(done chan struct{}) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.done == done && d.timer != nil && !isClosed(done) {
		close(done)
	}
}

// wait returns a channel that is closed when the deadline expires.
func (d *deadline) wait() chan struct{} {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.done
}

func isClosed(c chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}
