package meter

import (
	"context"
	"sync"
	"time"
)

// A Reader reads all NICs, those that have gone since the last time included, once.
type Reader func() []Reading

// A Clerk reads and flushes as time goes by.
type Collector struct {
	meter *Meter
	read  Reader
	fail  func(error) // told of a flush that failed, and not again until one did not

	mu     sync.Mutex // held while reading
	last   time.Time
	failed bool
}

// every is how often: what is lost when the daemon is killed is what came after.
const every = time.Second

// NewClerk makes a clerk, who does nothing yet.
func NewCollector(m *Meter, read Reader, fail func(error)) *Collector {
	return &Collector{meter: m, read: read, fail: fail}
}

// Run reads and flushes until ctx ends, and then once more.
func (c *Collector) Run(ctx context.Context) {
	tick := time.NewTicker(every)
	defer tick.Stop()
	for {
		c.flush()
		select {
		case <-tick.C:
		case <-ctx.Done():
			c.flush()
			return
		}
	}
}

func (c *Collector) flush() {
	c.Refresh(0)
	err := c.meter.Flush()
	if err != nil && !c.failed {
		c.fail(err)
	}
	c.failed = err != nil
}

// Refresh reads, unless somebody did within age. Many may ask at a time: the NICs are read once.
func (c *Collector) Refresh(age time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	now := time.Now()
	if age > 0 && now.Sub(c.last) < age {
		return
	}
	c.meter.Sample(now, c.read())
	c.last = time.Now()
}

// Meter is what the clerk fills.
func (c *Collector) Meter() *Meter { return c.meter }
