package vswitch

import (
	"sync"
	"sync/atomic"
	"time"
)

// A bucket is a token bucket of bytes: it fills at a rate, up to a burst. It may be
// overdrawn: by one frame of each that has waited for it, which is one for each queue of each of its ports.
type bucket struct {
	limited     atomic.Bool // rate is not 0: most have none, and then nobody waits for mu
	mu          sync.Mutex
	rate, burst float64 // bytes a second; 0: no limit
	level       float64
	at          time.Time
}

// limits are of what is sent and of what is received.
type limits [2]bucket

// Directions of limits.
const (
	out = 0
	in  = 1
)

// tenantLimits are those of all ports of a tenant.
type tenantLimits struct {
	limits
	ports int // guarded by the switch's mu
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
	b.limited.Store(rate != 0)
}

// take takes n bytes; false: there is nothing to be taken.
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

// pay is take when it cannot be refused any more: several may have waited until now.
func (b *bucket) pay(n int, now time.Time) {
	if !b.limited.Load() {
		return
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.fill(now)
	b.level -= float64(n)
}

func (b *bucket) fill(now time.Time) {
	if !now.After(b.at) { // somebody was faster
		return
	}
	if !b.at.IsZero() {
		b.level = min(b.burst, b.level+now.Sub(b.at).Seconds()*b.rate)
	}
	b.at = now
}

// wait returns how long to wait until something may be taken; 0: not at all.
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
