// Package ratelimit bounds how often something happens for each of many keys: changes of a user, events of an object,
// log lines of a tenant.
//
// Each key has a token bucket, which holds a burst and fills at a rate. Time is an argument. The package is not for
// the data path: package schedule and package vswitch have buckets of bytes there, and budget.Pace delays its callers
// instead of refusing them.
package ratelimit

import (
	"sync"
	"time"
)

// Buckets are token buckets, one for each key. Fields do not change after the first call of Take. Any goroutine may call
// Take.
type Buckets[K comparable] struct {
	Rate  float64 // tokens a second
	Burst float64 // the most tokens that a bucket holds; a new bucket is full
	Most  int     // the most keys that are counted apart; 0: no limit

	mu sync.Mutex
	of map[K]*bucket // guarded by mu
}

// A bucket has tokens at a time.
type bucket struct {
	tokens float64
	at     time.Time
	missed uint64 // refusals since the last token was taken
}

// Take takes a token of a key. If there is none, ok is false. Otherwise missed is the number of refusals since the last
// token of the key was taken.
func (b *Buckets[K]) Take(key K, now time.Time) (missed uint64, ok bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	u := b.of[key]
	if u == nil {
		b.trim(now)
		u = &bucket{tokens: b.Burst, at: now}
		b.of[key] = u
	}
	if b.fill(u, now); u.tokens < 1 {
		u.missed++
		return 0, false
	}
	u.tokens--
	missed, u.missed = u.missed, 0
	return missed, true
}

// Len is the number of keys that are counted apart.
func (b *Buckets[K]) Len() int {
	b.mu.Lock()
	defer b.mu.Unlock()
	return len(b.of)
}

// fill adds the tokens of the time that has passed. mu is held.
func (b *Buckets[K]) fill(u *bucket, now time.Time) {
	if since := now.Sub(u.at); since > 0 {
		u.tokens, u.at = min(b.Burst, u.tokens+since.Seconds()*b.Rate), now
	}
}

// trim ensures that one more key can be added. It deletes full buckets, because a new bucket is full, too. If none is
// full it deletes all: a bounded table is more important than an exact rate. mu is held.
func (b *Buckets[K]) trim(now time.Time) {
	if b.of == nil {
		b.of = make(map[K]*bucket)
	}
	if b.Most == 0 || len(b.of) < b.Most {
		return
	}
	for key, u := range b.of {
		if b.fill(u, now); u.tokens >= b.Burst {
			delete(b.of, key)
		}
	}
	if len(b.of) >= b.Most {
		clear(b.of)
	}
}
