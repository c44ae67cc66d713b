package control

import (
	"fmt"
	"sync/atomic"
	"time"

	"vrdma.dev/vrdma/internal/events"
	"vrdma.dev/vrdma/internal/tenancy/store"
)

// A store on other hosts may be away. What it last said stays in force without limit: programs go on, and connect.
// Nothing can be changed, and changes of rules do not arrive. A policy can limit how long that is acceptable
// (maxStaleness).

// storeHealth says whether the daemon's knowledge is in step with the store.
type storeHealth struct {
	cfg     *Config
	journal *Journal
	alarmed atomic.Pointer[string]       // why the store as a whole is not trusted; nil: it is
	stood   atomic.Pointer[store.Health] // at the last check
}

// shared reports whether daemons of other hosts have the store, too.
func (h *storeHealth) shared() bool {
	_, is := h.cfg.Store.(store.Remote)
	return is
}

// now is the state of the store. A store of our own is always in step.
func (h *storeHealth) now() store.Health {
	if r, is := h.cfg.Store.(store.Remote); is {
		return r.Health()
	}
	return store.Health{State: store.InStep}
}

// staleness is how old the daemon's knowledge may be; 0 while it is in step.
func (h *storeHealth) staleness() time.Duration {
	if now := h.now(); now.State != store.InStep {
		return time.Since(now.Heard)
	}
	return 0
}

// away says that the store is away, and since when; "": it is not.
func (h *storeHealth) away() string {
	now := h.now()
	switch {
	case now.State != store.Away:
		return ""
	case now.Heard.IsZero():
		return fmt.Sprintf("the store does not answer (%v)", now.Why)
	}
	return fmt.Sprintf("the store has not answered for %v (%v)", time.Since(now.Heard).Round(time.Second), now.Why)
}

// An Ager is a Provisioner that needs the maximum age of the rules.
type Ager interface{ Age(time.Duration) }

// tell passes the maximum age of the rules to the Provisioner.
func (h *storeHealth) tell() {
	if ager, is := h.cfg.Provisioner.(Ager); is && h.shared() {
		ager.Age(h.staleness())
	}
}

// check tells the Provisioner how old the rules may be, and records when the store goes away and comes back.
func (h *storeHealth) check() {
	h.tell()
	now := h.now()
	if before := h.stood.Swap(&now); before == nil && now.State == store.InStep || before != nil && before.State == now.State {
		return
	}
	e := events.Event{Verb: events.Ready, Reason: "the store answers again"}
	switch now.State {
	case store.Away:
		e = events.Event{Verb: events.Failed, Reason: h.away() + ": what it said last holds, and nothing can be changed"}
	case store.Strange:
		e = events.Event{Verb: events.Failed, Reason: h.alarm()}
	}
	h.journal.Record(e)
}

// alarm says what is wrong with the store as a whole; "": nothing.
func (h *storeHealth) alarm() string {
	if h := h.now(); h.State == store.Strange {
		return fmt.Sprintf("the store is not the one that it was (%v): what this host has stays as it is", h.Why)
	}
	if why := h.alarmed.Load(); why != nil {
		return *why
	}
	return ""
}

// firstWait is how long a question waits for the first answer of a shared store after the daemon's start.
const firstWait = 5 * time.Second

// awaitFirst waits until the store has answered once since the plane was opened, and reads it then. Before that the daemon knows only
// its copy of the store, which may be empty.
func (p *Plane) awaitFirst() {
	for p.health.shared() && !p.answered.Load() && time.Since(p.opened) < firstWait {
		if p.health.now().State == store.InStep {
			p.changing.Lock()
			if p.refresh() == nil {
				p.answered.Store(true)
			}
			p.changing.Unlock()
			return
		}
		select {
		case <-time.After(firstWait / 250):
		case <-p.ended.Done():
			return
		}
	}
}
