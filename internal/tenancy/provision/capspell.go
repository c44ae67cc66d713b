package provision

import (
	"fmt"
	"sync"
	"time"

	"vrdma.dev/vrdma/internal/events"
	"vrdma.dev/vrdma/internal/tenancy/tenant"
)

// spellEnd is how long a NIC must stay below its caps until a spell ends. The loop reports a NIC at its cap once a second.
const spellEnd = 5 * time.Second

// A capSpell is the time in which a cap delays a NIC. It has one event when it begins and one when it ends, however long it is.
type capSpell struct {
	sink events.Sink
	key  tenant.Key
	// throttled is how long caps have delayed the NIC, since it exists. It waits for the loop.
	throttled func() time.Duration

	mu          sync.Mutex
	on          bool        // guarded by mu
	limit       string      // guarded by mu; the cap that was reached first
	began, last time.Time   // guarded by mu
	timer       *time.Timer // guarded by mu
}

// capped is called on the loop while a cap delays the NIC.
func (c *capSpell) capped(limit string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.last = time.Now()
	if c.on {
		c.timer.Reset(spellEnd)
		return
	}
	c.on, c.limit, c.began = true, limit, c.last
	c.timer = time.AfterFunc(spellEnd, c.end)
	c.sink.Record(events.Event{Verb: events.Capped, Object: c.key, Reason: limit})
}

// end records the end of the spell.
func (c *capSpell) end() {
	delayed := c.throttled() // before mu, which the loop takes
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.on || time.Since(c.last) < spellEnd {
		return // it was delayed again meanwhile, and the timer is set
	}
	c.on = false
	c.sink.Record(events.Event{Verb: events.Uncapped, Object: c.key, Reason: spellText(c.limit, c.last.Sub(c.began), delayed)})
}

// spellText says how long a spell was and how much the NIC was delayed in all.
func spellText(limit string, length, delayed time.Duration) string {
	return fmt.Sprintf("%s, for %v; delayed for %v in all", limit, max(length.Round(time.Second), time.Second), delayed.Round(time.Millisecond))
}

// throttled is how long caps have delayed a NIC; 0: there is none of this name.
func (r *Provisioner) throttled(key tenant.Key) (d time.Duration) {
	n := r.cfg.NICs.Named(key.Tenant + "/" + key.Name)
	if n == nil {
		return 0
	}
	r.onLoop(func() { // fails only after the loop has ended
		out, in := r.cfg.Engine.Throttled(n.Device)
		d = time.Duration(out + in)
	})
	return d
}
