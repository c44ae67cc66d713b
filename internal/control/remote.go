package control

import (
	"errors"
	"fmt"
	"time"

	"vrdma/internal/store"
)

// heed says in events how it stands with a store that other hosts share.
func (p *Plane) heed(remote store.Remote) {
	said := store.InStep
	for {
		changed := remote.Changed()
		if h := remote.Health(); h.State != said {
			said = h.State
			e := Event{Verb: EventReady, Reason: "the store is in step again"}
			if h.State != store.InStep {
				e = Event{Verb: EventFailed, Reason: unhealthy(h).Error()}
			}
			p.journal.record(e)
		}
		select {
		case <-changed:
		case <-p.ended.Done():
			return
		}
	}
}

// unhealthy says what is wrong with a store that is not in step.
func unhealthy(h store.Health) error {
	if h.State == store.Strange {
		return h.Why
	}
	why := h.Why
	if why == nil {
		why = errors.New("it does not answer")
	}
	if h.Heard.IsZero() {
		return fmt.Errorf("the store has never answered: %w", why)
	}
	return fmt.Errorf("the store was last heard of %s (%s ago): %w", h.Heard.Format(time.RFC3339), time.Since(h.Heard).Round(time.Second), why)
}

// changeable says why nothing can be changed now. A change that waits for a store that is away
// would have pulled NICs out before.
func (p *Plane) changeable() error {
	remote, shared := p.cfg.Store.(store.Remote)
	if !shared {
		return nil
	}
	if h := remote.Health(); h.State != store.InStep {
		return fmt.Errorf("nothing can be changed now, and what is declared goes on: %w", unhealthy(h))
	}
	return nil
}
