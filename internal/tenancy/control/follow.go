package control

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"vrdma.dev/vrdma/internal/events"
	"vrdma.dev/vrdma/internal/tenancy/store"
	"vrdma.dev/vrdma/internal/tenancy/tenant"
)

// refresh reads the whole store. changing is held.
func (p *Plane) refresh() error {
	old := p.snapshots.now.Load()
	snap, err := load(p.cfg.Store, old.world)
	if err != nil {
		return err
	}
	if old.named && snap.meta.ID != old.meta.ID {
		why := fmt.Sprintf("the store is another one than before (it was %s, now %s): nothing is changed here; restart the daemon if that is meant", old.meta.ID, snap.meta.ID)
		if !snap.named {
			why = fmt.Sprintf("the store is empty: it was %s, and somebody has wiped it; what this host has stays as it is: import an export, or restart the daemon if that is meant", old.meta.ID)
		}
		p.health.alarmed.Store(&why)
		return errors.New(why)
	}
	p.health.alarmed.Store(nil)
	newer := false
	p.snapshots.amend(func(s *snapshot) {
		// Placements may have been absorbed while the store was read, and follow does not deliver them again.
		if newer = snap.revision > s.revision; newer {
			snap.keep(s)
			*s = *snap
		}
	})
	if !newer {
		return nil
	}
	effects := difference(old.world, snap.world)
	p.report(old.problems, snap.problems)
	p.announce(effects, another)
	p.registration.check(snap)
	p.settle(snap.world, nil)
	return nil
}

// another is the author of changes that another daemon made.
var another = events.Actor{UID: -1, Program: "another daemon"}

// difference is the effects that lead from one world to another.
func difference(old, next *tenant.World) (effects []tenant.Effect) {
	for _, o := range old.Objects("") {
		if next.Get(o.Key()) == nil {
			effects = append(effects, tenant.Effect{Key: o.Key(), Old: o})
		}
	}
	for _, o := range next.Objects("") {
		if before := old.Get(o.Key()); !same(before, o) {
			effects = append(effects, tenant.Effect{Key: o.Key(), Old: before, New: o})
		}
	}
	return effects
}

// same reports whether two objects are equal. Usually they are the same pointer.
func same(a, b tenant.Object) bool {
	if a == nil || b == nil || a == b {
		return a == b
	}
	x, err1 := tenant.Marshal(a)
	y, err2 := tenant.Marshal(b)
	return err1 == nil && err2 == nil && string(x) == string(y)
}

// follow applies what other daemons write to the store, as it arrives.
func (p *Plane) follow(revision int64) {
	w := p.cfg.Store.Watch("", revision)
	for {
		b, err := w.Next(p.ended)
		switch {
		case errors.Is(err, store.ErrCompacted):
			b.Revision = p.snapshots.now.Load().revision // list, and continue from there
			w = p.cfg.Store.Watch("", 0)
		case err != nil:
			return // closed
		}
		if err == nil {
			err = p.absorb(&b)
		} else {
			err = p.relist()
		}
		if err != nil && !errors.Is(err, store.ErrClosed) {
			p.journal.Record(events.Event{Verb: events.Failed, Reason: err.Error()})
		}
	}
}

// relist is refresh for a caller that does not hold changing.
func (p *Plane) relist() error {
	p.changing.Lock()
	defer p.changing.Unlock()
	return p.refresh()
}

// absorb applies one commit of another daemon. A commit about hosts and placements does not wait for changing.
func (p *Plane) absorb(b *store.Batch) error {
	if b.Revision <= p.snapshots.now.Load().revision {
		return nil // our own commit
	}
	d := read(b)
	if p.health.alarm() != "" {
		return p.relist()
	}
	if !d.declares() {
		p.absorbPlacements(&d, b.Revision)
		return nil
	}
	p.changing.Lock()
	defer p.changing.Unlock()
	old := p.snapshots.now.Load()
	if b.Revision <= old.revision {
		return nil
	}
	if d.anew || len(old.problems) > 0 {
		return p.refresh()
	}
	w, effects, err := old.world.Follow(d.put, d.gone)
	if err != nil {
		return p.refresh()
	}
	snap := p.snapshots.amend(func(s *snapshot) {
		s.world = w
		s.take(&d, b.Revision)
	})
	p.announce(effects, another)
	switch {
	case p.registration.check(snap):
		p.settle(w, nil)
	case len(d.others) > 0: // hosts and placements
		p.settle(w, p.touched(w, effects))
	default:
		p.settleFor(w, effects)
	}
	return nil
}

// absorbPlacements applies the placements of NICs and the registrations of hosts.
func (p *Plane) absorbPlacements(d *delta, revision int64) {
	var problems []string
	snap := p.snapshots.amend(func(s *snapshot) { problems = s.take(d, revision) })
	if len(d.others) == 0 {
		if d.generation {
			p.holds(revision)
		}
		return
	}
	p.report(nil, problems)
	for _, c := range d.others {
		switch k, isNIC := nicAt(c.Key); {
		case strings.HasPrefix(c.Key, prefixPlace) && isNIC:
			if n := snap.world.NIC(k.Tenant, k.Name); n != nil {
				p.updates.add(update{object: n})
			}
		case strings.HasPrefix(c.Key, prefixHost), strings.HasPrefix(c.Key, prefixLive):
			if h := p.registration.host(snap, c.Key[strings.IndexByte(c.Key, '/')+1:]); h != nil {
				p.updates.add(update{object: h})
			}
		}
	}
	if p.registration.check(snap) {
		p.changing.Lock()
		p.settle(p.World(), nil)
		p.changing.Unlock()
		return
	}
	p.overlay.update()
	if d.generation {
		p.holds(revision)
	}
}

// touched are the NICs that a change affects: its own, and those of networks that changed.
func (p *Plane) touched(w *tenant.World, effects []tenant.Effect) []tenant.Key {
	keys := []tenant.Key{}
	for _, e := range effects {
		switch {
		case !e.Changed():
		case e.Key.Kind == tenant.KindNIC:
			keys = append(keys, e.Key)
		case e.Key.Kind == tenant.KindNetwork:
			for _, n := range w.NICs(e.Key) {
				keys = append(keys, n.Key())
			}
		}
	}
	slices.SortFunc(keys, tenant.Key.Compare)
	return slices.Compact(keys)
}
