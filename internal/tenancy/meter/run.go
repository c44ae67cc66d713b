package meter

import (
	"context"
	"sync"
	"time"
)

// A Reader reads all NICs, and once more those that were removed since the last time.
type Reader func() []Reading

// A Collector reads the NICs' counters and writes the meter's file, periodically.
type Collector struct {
	meter *Meter
	read  Reader
	fail  func(error) // called for a failed flush, and not again until one succeeds

	mu     sync.Mutex // held while reading
	last   time.Time
	failed bool
}

// every is the period. A daemon that is killed loses the usage of at most one period.
const every = time.Second

// NewCollector makes a collector. Run starts it.
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

// Refresh reads the counters, unless they were read within age. Concurrent callers share one reading.
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

// Meter is the meter that the collector fills.
func (c *Collector) Meter() *Meter { return c.meter }
