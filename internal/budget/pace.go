package budget

import (
	"sync"
	"time"
)

// A Pace is how many of something there may be a second: a bucket that holds one second's
// worth, so that a program may do at once what it has not done for a while. A nil Pace, or one
// of rate 0, lets everything pass. Time is an argument, and does not run backwards by much.
//
// The bucket is kept as one moment: full is when it would be full again. A token more puts it
// off by 1/rate, and there is none while it is more than a second away.
type Pace struct {
	Tenant string // whose it is

	mu   sync.Mutex
	rate int       // guarded by mu; a second
	full time.Time // guarded by mu
}

// Set changes the rate; 0 is no limit.
func (p *Pace) Set(rate int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.rate = max(rate, 0)
}

// Wait takes a token and says how long whoever took it has to wait: those who wait are served
// one after the other.
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

// Error returns what somebody is told who was refused something of a kind.
func (p *Pace) Error(k Kind) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	return &Error{Kind: k, Whose: "tenant " + p.Tenant, Tenant: p.Tenant, Limit: uint64(p.rate), Used: uint64(p.rate), Asked: 1}
}

// take takes a token, and says when it is there. mu is held.
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
