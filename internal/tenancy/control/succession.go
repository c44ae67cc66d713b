package control

import (
	"context"
	"errors"
	"time"

	"vrdma.dev/vrdma/internal/tenancy/store"
)

// Two planes of one host exist while a daemon is replaced under its programs. Pause keeps the declared objects and the
// NICs of the old plane as they are, so that the next one creates the same NICs. Placements that other hosts write
// still arrive.
//
//	old plane   Pause ─────────────────────────▶ ends; or resumes, if the next daemon fails
//	next plane        Open, with the old boot ─▶ Continue
//
// The next plane has the boot of the old one, so for other hosts it is the same daemon: neither plane fences the other,
// and what programs have open stays open. Before Continue it writes nothing to the store.

// Boot identifies this daemon in the store.
func (p *Plane) Boot() string { return p.registration.boot }

// Pause keeps declared objects and NICs as they are, until resume is called. It fails if a change does not end before
// ctx does.
func (p *Plane) Pause(ctx context.Context) (resume func(), err error) {
	if why := p.Fenced(); why != "" {
		return nil, errors.New(why)
	}
	for !p.changing.TryLock() {
		select {
		case <-time.After(time.Millisecond):
		case <-ctx.Done():
			return nil, errors.New("a change of declared objects does not end: try again")
		}
	}
	p.paused.Store(true)
	return func() {
		p.paused.Store(false)
		p.changing.Unlock()
	}, nil
}

// Continue starts a plane that was opened with Config.Boot. The daemon before has ended.
func (p *Plane) Continue() {
	if p.begin == nil {
		return
	}
	p.registration.live()
	for _, f := range p.begin {
		p.changes.Go(f)
	}
	p.begin = nil
	if p.health.shared() {
		p.changes.Go(p.tidy) // writes the version of this daemon
	}
	p.changing.Unlock()
}

// live keeps the key that says that this daemon lives.
func (r *registration) live() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.keepAlive()
}

// keepAlive is live with mu held.
func (r *registration) keepAlive() {
	if remote, is := r.cfg.Store.(store.Remote); is && r.release == nil {
		r.release = remote.Alive(prefixLive+r.cfg.Host, []byte(r.boot), lifeTime)
	}
}
