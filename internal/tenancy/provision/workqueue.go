package provision

import (
	"sync"
	"time"
)

// chores is what may wait until the rack has nothing else to do: sketching the device trees of NICs
// that were put in, removing the directories of NICs that were pulled out. A thousand of either take
// some tenths of a second of a processor, and more on a disk.
type workQueue struct {
	mu    sync.Mutex
	todo  []workItem // guarded by mu; in the order in which they came
	last  time.Time  // guarded by mu; when the last one came
	more  chan struct{}
	quit  chan struct{}
	ended chan struct{}
}

// A chore is something to do, and when it came.
type workItem struct {
	do func()
	at time.Time
}

// choreRest is how long no new chore has to have come before one is done: whoever puts in a
// thousand NICs waits for the NICs, and not for these. On a disk a device tree takes five times as
// long as putting in its NIC. choreMost bounds the wait for each.
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

// rest waits while chores keep coming, unless one has waited for long enough.
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

// add has f done soon.
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

// stop ends it. What has not been done is not done.
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
