package control

import (
	"fmt"
	"time"

	"vrdma.dev/vrdma/internal/events"
	"vrdma.dev/vrdma/internal/tenancy/store"
)

// A store on other hosts may be away. What it said last holds then, for ever: programs go on, and
// connect. Nothing can be changed, and rules that others change do not arrive: a policy may say for
// how long that will do (maxStaleness).

// shared reports whether daemons of other hosts have the store, too.
func (p *Plane) shared() bool {
	_, is := p.cfg.Store.(store.Remote)
	return is
}

// health is how what we know stands to the store. One of our own is always in step.
func (p *Plane) health() store.Health {
	if r, is := p.cfg.Store.(store.Remote); is {
		return r.Health()
	}
	return store.Health{State: store.InStep}
}

// Health says whether what the daemon knows is what the store says, and since when it is not.
func (p *Plane) Health() store.Health { return p.health() }

// Age is how old what is known of the store may be; 0 while it is in step.
func (p *Plane) Age() time.Duration {
	if h := p.health(); h.State != store.InStep {
		return time.Since(h.Heard)
	}
	return 0
}

// away says that the store is away, and since when; "" if it is not.
func (p *Plane) away() string {
	h := p.health()
	switch {
	case h.State != store.Away:
		return ""
	case h.Heard.IsZero():
		return fmt.Sprintf("the store does not answer (%v)", h.Why)
	}
	return fmt.Sprintf("the store has not answered for %v (%v)", time.Since(h.Heard).Round(time.Second), h.Why)
}

// An Ager is a Rack that is told how old the rules may be.
type Ager interface{ Age(time.Duration) }

// ageRack tells the rack how old the rules may be.
func (p *Plane) ageRack() {
	if ager, is := p.cfg.Provisioner.(Ager); is && p.shared() {
		ager.Age(p.Age())
	}
}

// age tells the rack how old the rules may be, and everybody when the store goes away and comes
// back.
func (p *Plane) age() {
	p.ageRack()
	h := p.health()
	if before := p.stood.Swap(&h); before == nil && h.State == store.InStep || before != nil && before.State == h.State {
		return
	}
	e := events.Event{Verb: events.Ready, Reason: "the store answers again"}
	switch h.State {
	case store.Away:
		e = events.Event{Verb: events.Failed, Reason: p.away() + ": what it said last holds, and nothing can be changed"}
	case store.Strange:
		e = events.Event{Verb: events.Failed, Reason: p.alarm()}
	}
	p.journal.Record(e)
}
