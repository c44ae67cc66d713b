package vswitch

import (
	"sync"
	"sync/atomic"
	"time"
)

// A bucket is a token bucket of bytes: it fills at a rate, up to a burst. It may be overdrawn by one frame for each waiting queue of
// its ports.
type bucket struct {
	limited     atomic.Bool // rate is not 0; most buckets have no rate, and skip the lock
	mu          sync.Mutex
	rate, burst float64 // bytes per second; 0: no limit
	level       float64
	at          time.Time
}

// limits are the buckets for both directions.
type limits [2]bucket

// Directions of limits.
const (
	out = 0
	in  = 1
)

// tenantLimits are the limits of all ports of a tenant together.
type tenantLimits struct {
	limits
	ports int // guarded by the switch's mu
}

// leastBurst is the size of a large segment.
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
	b.limited.Store(rate != 0)
}

// take takes n bytes; it returns false if the bucket is empty.
func (b *bucket) take(n int, now time.Time) bool {
	if !b.limited.Load() {
		return true
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.fill(now)
	if b.level <= 0 {
		return false
	}
	b.level -= float64(n)
	return true
}

// charge takes n bytes without refusing: the frame has already been accepted.
func (b *bucket) charge(n int, now time.Time) {
	if !b.limited.Load() {
		return
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.fill(now)
	b.level -= float64(n)
}

func (b *bucket) fill(now time.Time) {
	if !now.After(b.at) { // another goroutine was faster
		return
	}
	if !b.at.IsZero() {
		b.level = min(b.burst, b.level+now.Sub(b.at).Seconds()*b.rate)
	}
	b.at = now
}

// wait returns the time until the bucket is not empty; 0 if it is not empty now.
func (b *bucket) wait(now time.Time) time.Duration {
	if !b.limited.Load() {
		return 0
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.fill(now); b.level > 0 || b.rate == 0 {
		return 0
	}
	return time.Duration(-b.level/b.rate*1e9) + time.Microsecond
}
