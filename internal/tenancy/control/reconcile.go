package control

import (
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"sync/atomic"
	"time"

	"vrdma.dev/vrdma/internal/events"
	"vrdma.dev/vrdma/internal/tenancy/tenant"
)

// A reconciler makes the Provisioner's NICs those that a world declares. Its methods are called with Plane.changing held.
type reconciler struct {
	cfg          *Config
	journal      *Journal
	updates      *feed[update]
	registration *registration
	states       *nicStates
	lax          atomic.Bool // the last rules could not be enforced
}

// here reports whether a NIC is to be created on this host. A NIC that is not pinned has a listener on every host, and
// is placed where a program opens it (placement.go).
func (c *reconciler) here(n *tenant.NIC) bool {
	if c.registration.reason() != "" {
		return false
	}
	return n.Spec.Host == "" || n.Spec.Host == anywhere || n.Spec.Host == c.cfg.Host
}

// anywhere is a spelling of "no host" in files.
const anywhere = "anywhere"

// reconcile makes the Provisioner's NICs those of a world: it removes NICs, enforces the rules, then creates NICs. It
// does so for all NICs, or for those of keys. It returns what failed, and reports NICs whose status has changed to
// watchers.
func (c *reconciler) reconcile(w *tenant.World, keys []tenant.Key) (warnings []string) {
	var told []update
	var gone []tenant.Key
	leave, stay := keys, keys
	if keys == nil {
		leave = c.states.keys()
		for _, o := range w.Objects(tenant.KindNIC) {
			stay = append(stay, o.Key())
		}
	}
	for _, key := range leave {
		n, s := w.NIC(key.Tenant, key.Name), c.states.get(key)
		switch {
		case n != nil && (c.here(n) || s.nic == nil):
			continue
		case s.nic == nil && s.status.State != Failed:
			c.states.free(key)
			continue
		}
		gone = append(gone, key)
	}
	failures := c.pull(gone, true) // the change has already been decided
	for _, key := range gone {
		if err := failures[key]; err != nil {
			warnings = append(warnings, fmt.Sprintf("%v cannot be removed: %v", key, err))
			c.states.set(key, func(s *nicState) { s.status = c.failed(s.status, "it is to be removed: "+err.Error()) })
		}
	}
	err := try(c.cfg.Log, func() error { c.cfg.Provisioner.Enforce(w); return nil })
	if was := c.lax.Swap(err != nil); err != nil {
		warnings = append(warnings, "the rules cannot be enforced: "+err.Error()+"; it is tried again")
		if !was {
			c.journal.Record(events.Event{Verb: events.Failed, Reason: "the rules cannot be enforced: " + err.Error()})
		}
	}
	failed := []*tenant.NIC{}
	errs := make(map[tenant.Key]error)
	for _, key := range stay {
		n := w.NIC(key.Tenant, key.Name)
		if n == nil {
			continue
		}
		if !c.here(n) {
			c.setElsewhere(n, &told)
			continue
		}
		if err := c.putIn(w, n, &told); err != nil {
			failed, errs[n.Key()] = append(failed, n), err
		}
	}
	// Two NICs may have exchanged their addresses: then the first can have its own only now.
	for _, n := range failed {
		if err := c.putIn(w, n, &told); err != nil {
			errs[n.Key()] = err
		} else {
			delete(errs, n.Key())
		}
	}
	for _, key := range slices.SortedFunc(maps.Keys(errs), tenant.Key.Compare) {
		err := errs[key]
		warnings = append(warnings, fmt.Sprintf("%v: %v; it is tried again", key, err))
		c.states.set(key, func(s *nicState) {
			if s.status.State != Failed || s.status.Reason != err.Error() {
				s.status = c.failed(s.status, err.Error())
				told = append(told, update{object: w.Get(key)})
				c.journal.Record(events.Event{Verb: events.Failed, Object: key, Reason: err.Error()})
			}
		})
	}
	c.updates.add(told...)
	return warnings
}

// putIn creates a NIC, unless it exists as declared.
func (c *reconciler) putIn(w *tenant.World, n *tenant.NIC, told *[]update) error {
	key, network := n.Key(), w.NetworkOf(n)
	if s := c.states.get(key); s.nic != nil && same(s.nic, n) && same(s.network, network) {
		return nil
	}
	if err := try(c.cfg.Log, func() error { return c.cfg.Provisioner.Put(w.TenantOf(n), network, n) }); err != nil {
		return err
	}
	c.states.set(key, func(s *nicState) {
		s.nic, s.network = n, network
		if s.status.State != Ready {
			if s.status.State == Failed {
				c.journal.Record(events.Event{Verb: events.Ready, Object: key})
			}
			s.status = Status{State: Ready, Since: time.Now()}
			*told = append(*told, update{object: n})
		}
	})
	return nil
}

func (c *reconciler) setElsewhere(n *tenant.NIC, told *[]update) {
	reason := c.registration.reason()
	if reason == "" {
		reason = "it is of host " + n.Spec.Host
	}
	if s := c.states.get(n.Key()); s.status.State == Elsewhere && s.status.Reason == reason || s.nic != nil {
		return
	}
	c.states.set(n.Key(), func(s *nicState) {
		s.status = Status{State: Elsewhere, Reason: reason, Since: time.Now()}
		*told = append(*told, update{object: n})
	})
}

// failed is the status for a failure. Since is when the state changed.
func (c *reconciler) failed(old Status, why string) Status {
	s := Status{State: Failed, Reason: why, Since: old.Since}
	if old.State != Failed {
		s.Since = time.Now()
	}
	return s
}

// vacate removes the NICs that a change takes from this host, before it is committed. If one is in use, all stay, and
// nothing happens.
func (c *reconciler) vacate(old, next *tenant.World, effects []tenant.Effect, force bool) error {
	var leave []tenant.Key
	for _, e := range effects {
		if _, isNIC := e.Old.(*tenant.NIC); !isNIC || c.states.get(e.Key).nic == nil {
			continue
		}
		if now := next.NIC(e.Key.Tenant, e.Key.Name); now == nil || !c.here(now) {
			leave = append(leave, e.Key)
		}
	}
	failures := c.pull(leave, force)
	if len(failures) == 0 {
		return nil
	}
	var problems Error
	for _, key := range leave {
		var used *tenant.InUse
		switch err := failures[key]; {
		case err == nil:
		case errors.As(err, &used):
			problems.InUse = true
			problems.Problems = append(problems.Problems, used.Error())
		default:
			problems.Problems = append(problems.Problems, fmt.Sprintf("%v cannot be removed: %v", key, err))
		}
	}
	if !problems.InUse {
		for key := range failures { // it may be half removed: it has to be created again
			c.states.set(key, func(s *nicState) { s.nic = nil })
		}
	}
	c.reconcile(old, nil) // the removed NICs are created again
	return &problems
}

// pull removes NICs, and returns why some still exist.
func (c *reconciler) pull(keys []tenant.Key, force bool) (failures map[tenant.Key]error) {
	if len(keys) == 0 {
		return nil
	}
	if err := try(c.cfg.Log, func() error { failures = c.cfg.Provisioner.Remove(keys, force); return nil }); err != nil {
		failures = make(map[tenant.Key]error)
		for _, key := range keys {
			failures[key] = err
		}
	}
	inUse := false
	for _, err := range failures {
		var used *tenant.InUse
		inUse = inUse || errors.As(err, &used)
	}
	for _, key := range keys {
		if failures[key] == nil && !inUse {
			c.states.free(key)
		}
	}
	return failures
}

// try calls the Provisioner. A panic there is a bug of vrdma's, and affects that NIC alone.
func try(log *slog.Logger, f func() error) (err error) {
	defer func() {
		if r := recover(); r != nil {
			log.Error("panic in the provisioner", "panic", r, "stack", stack())
			err = fmt.Errorf("a bug in vrdma, see the daemon's log: %v", r)
		}
	}()
	return f()
}
