package control

import (
	"fmt"
	"sync"
	"time"
)

// A change is written to the disk, holds up the next, and its events push others out. So who is not
// the operator may make so many a second, after a pause so many at once; dry runs count, too.
const (
	changeRate  = 5
	changeBurst = 50
	// mostPaces bounds how many users are counted apart.
	mostPaces = 1024
)

// paces are how many changes users may still make.
type paces struct {
	mu    sync.Mutex
	users map[int]*pace
}

// A pace is a token bucket.
type pace struct {
	tokens float64
	at     time.Time // when tokens was right
}

func (p *pace) fill(now time.Time) {
	if since := now.Sub(p.at); since > 0 {
		p.tokens, p.at = min(changeBurst, p.tokens+since.Seconds()*changeRate), now
	}
}

// admit takes a change of a user; the error says that there were too many.
func (p *paces) admit(uid int, now time.Time) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	u := p.users[uid]
	if u == nil {
		p.forget(now)
		u = &pace{changeBurst, now}
		p.users[uid] = u
	}
	if u.fill(now); u.tokens < 1 {
		return fmt.Errorf("user %d makes too many changes: %d a second are allowed, and %d at once after a pause; wait, or put more objects into one file", uid, changeRate, changeBurst)
	}
	u.tokens--
	return nil
}

// forget makes room: who has been quiet begins anew as it would go on.
func (p *paces) forget(now time.Time) {
	if p.users == nil {
		p.users = make(map[int]*pace)
	}
	if len(p.users) < mostPaces {
		return
	}
	for uid, u := range p.users {
		if u.fill(now); u.tokens >= changeBurst {
			delete(p.users, uid)
		}
	}
	if len(p.users) >= mostPaces { // only administrators get here, and there are not so many
		clear(p.users)
	}
}
