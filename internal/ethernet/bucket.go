package ethernet

import (
	"sync"
	"time"
)

// A bucket is a token bucket of bytes: it fills at a rate, up to a burst. It may be overdrawn by one frame.
type bucket struct {
	mu          sync.Mutex
	rate, burst float64 // bytes a second; 0: no limit
	level       float64
	at          time.Time
}

// leastBurst is a large segment.
const leastBurst = 64 << 10

func (b *bucket) set(rate, burst uint64) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if burst == 0 {
		burst = max(rate/1000, leastBurst)
	}
	if b.rate == 0 {
		b.level = float64(burst)
	}
	b.rate, b.burst = float64(rate), float64(burst)
}

// take takes n bytes; false: there is nothing to be taken.
func (b *bucket) take(n int, now time.Time) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.rate == 0 {
		return true
	}
	b.fill(now)
	if b.level <= 0 {
		return false
	}
	b.level -= float64(n)
	return true
}

func (b *bucket) fill(now time.Time) {
	if !b.at.IsZero() && now.After(b.at) {
		b.level = min(b.burst, b.level+now.Sub(b.at).Seconds()*b.rate)
	}
	b.at = now
}

// wait is how long to wait until something may be taken; 0: not at all.
func (b *bucket) wait(now time.Time) time.Duration {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.rate == 0 {
		return 0
	}
	if b.fill(now); b.level > 0 {
		return 0
	}
	return time.Duration(-b.level/b.rate*1e9) + time.Microsecond
}
