package diag

import (
	"sync"
	"time"
)

// A throttle limits the loop time of queries. Reading counters and status takes time on the engine's loop in proportion to the
// number of queue pairs, and any user may query as often as it likes. So after a query the next one waits long enough that all
// together take a tenth of the loop. There is one throttle for each kind of caller.
type throttle struct {
	mu   sync.Mutex
	next time.Time // guarded by mu: earliest start of the next query
}

const throttleShare = 9

// looks are the throttles by kind of caller. Each kind waits only for itself: users' queries delay neither the daemon's owner nor
// the sysfs tree.
type looks struct{ tree, owner, users throttle }

// of returns the throttle of a tool.
func (l *looks) of(privileged bool) *throttle {
	if privileged {
		return &l.owner
	}
	return &l.users
}

// look runs f on the loop, after waiting for its time.
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
