package provision

import (
	"sync"
	"time"
)

// A workQueue runs work that may wait until the Provisioner is idle: writing the device trees of new NICs, and removing
// the directories of deleted ones. A thousand of either take some tenths of a second of processor time, and more on a
// disk.
type workQueue struct {
	mu    sync.Mutex
	todo  []workItem // guarded by mu; oldest first
	last  time.Time  // guarded by mu; when the newest was added
	more  chan struct{}
	quit  chan struct{}
	ended chan struct{}
}

// A workItem is a function and the time at which it was added.
type workItem struct {
	do func()
	at time.Time
}

// restTime is how long no new item may have been added before one runs, so that creating a thousand NICs does not wait
// for their device trees. On a disk a device tree takes five times as long as its NIC. mostDelay bounds the wait of
// each item.
const (
	restTime  = 20 * time.Millisecond
	mostDelay = 2 * time.Second
)

func (c *workQueue) start() {
	c.more, c.quit, c.ended = make(chan struct{}, 1), make(chan struct{}), make(chan struct{})
	go func() {
		defer close(c.ended)
		for {
			select {
			case <-c.more:
			case <-c.quit:
				return
			}
			for c.rest(); ; c.rest() {
				f := c.next()
				if f == nil {
					break
				}
				f()
			}
		}
	}()
}

// rest waits while items keep arriving, unless the oldest has waited for mostDelay.
func (c *workQueue) rest() {
	for {
		c.mu.Lock()
		until := c.last.Add(restTime)
		if len(c.todo) > 0 {
			if most := c.todo[0].at.Add(mostDelay); until.After(most) {
				until = most
			}
		}
		c.mu.Unlock()
		wait := time.Until(until)
		if wait <= 0 {
			return
		}
		select {
		case <-time.After(wait):
		case <-c.quit:
			return
		}
	}
}

// add appends f.
func (c *workQueue) add(f func()) {
	c.mu.Lock()
	c.last = time.Now()
	c.todo = append(c.todo, workItem{f, c.last})
	c.mu.Unlock()
	select {
	case c.more <- struct{}{}:
	default:
	}
}

func (c *workQueue) next() (f func()) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.todo) > 0 {
		f, c.todo = c.todo[0].do, c.todo[1:]
	}
	return f
}

// stop ends the queue and drops the items that have not run.
func (c *workQueue) stop() {
	if c.quit == nil {
		return
	}
	c.mu.Lock()
	c.todo = nil
	c.mu.Unlock()
	close(c.quit)
	<-c.ended
	c.quit = nil
}
