package diag

import (
	"sync"
	"time"
)

// A throttle keeps those who look at the device from slowing those who use it.
// Reading counters and status takes time on the engine's loop in proportion to the
// number of queue pairs, and anybody may ask as often as they like: after a look
// the next has to wait so long that all of them together take a tenth of the loop.
// There is one for each kind of who looks.
type throttle struct {
	mu   sync.Mutex
	next time.Time // guarded by mu: when the next look may begin
}

const throttleShare = 9

// looks are the throttles of those who look. Each waits behind its own kind only: users who
// ask for status all the time hold up neither the daemon's owner nor the device tree, which
// programs read.
type looks struct{ tree, owner, users throttle }

// of returns the throttle of a tool.
func (l *looks) of(privileged bool) *throttle {
	if privileged {
		return &l.owner
	}
	return &l.users
}

// look runs f on the loop, when it is time.
func (t *throttle) look(l Loop, f func()) {
	t.mu.Lock()
	defer t.mu.Unlock()
	time.Sleep(time.Until(t.next))
	l.Do(func() {
		start := time.Now()
		f()
		t.next = time.Now().Add(throttleShare * time.Since(start))
	})
}
