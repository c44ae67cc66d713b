package budget

import (
	"sync"
	"time"
)

// A Pace limits a rate per second with a token bucket that holds one second's worth, so that a program may catch up after a
// pause. A nil Pace, or one with rate 0, has no limit. Time is an argument that does not run backwards by much.
//
// The bucket is stored as one time: full is when it would be full again. Taking a token delays it by 1/rate, and there is no
// token while it is more than a second away.
type Pace struct {
	Tenant string // the tenant that it limits

	mu   sync.Mutex
	rate int       // guarded by mu; per second
	full time.Time // guarded by mu
}

// Set changes the rate; 0 is no limit.
func (p *Pace) Set(rate int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.rate = max(rate, 0)
}

// Wait takes a token and returns how long the caller must wait for it: waiting callers are served one after the other.
func (p *Pace) Wait(now time.Time) time.Duration {
	if p == nil {
		return 0
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.take(now)
}

// Try takes a token if there is one.
func (p *Pace) Try(now time.Time) bool {
	if p == nil {
		return true
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	before := p.full
	if p.take(now) > 0 {
		p.full = before
		return false
	}
	return true
}

// Error returns the error for a refused request of a kind.
func (p *Pace) Error(k Kind) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	return &Error{Kind: k, Whose: "tenant " + p.Tenant, Tenant: p.Tenant, Limit: uint64(p.rate), Used: uint64(p.rate), Asked: 1}
}

// take takes a token, and returns the time until it is available. The caller holds mu.
func (p *Pace) take(now time.Time) time.Duration {
	if p.rate == 0 {
		return 0
	}
	if p.full.Before(now) {
		p.full = now
	}
	p.full = p.full.Add(time.Second / time.Duration(p.rate))
	return max(0, p.full.Sub(now)-time.Second)
}
