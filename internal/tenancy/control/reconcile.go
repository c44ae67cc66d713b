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
	"vrdma.dev/vrdma/internal/net/overlay"
	"vrdma.dev/vrdma/internal/tenancy/tenant"
)

// A Rack is where the NICs of this host are. Its methods are not called at the same time.
type Provisioner interface {
	// Put puts a NIC in, or changes the one that is there to what it is now. It is called for
	// a NIC that is new and for one that changed, or whose network did.
	Put(t *tenant.Tenant, n *tenant.Network, c *tenant.NIC) error
	// Remove pulls NICs out, all at once, and returns why some are still in. If one is in use,
	// which is a *tenant.InUse, all stay, unless force ends the use. A NIC that is not there is
	// no error.
	Remove(keys []tenant.Key, force bool) map[tenant.Key]error
	// Enforce makes the policies, shares and quotas of a world those of the NICs. It is called
	// after every change, before NICs that are new are put in.
	Enforce(w *tenant.World)
	// Connect says who is where, on all hosts, in the networks of which this host has members. It
	// may be called while another method is.
	Connect(m *overlay.Map) error
}

// A Porter is a Rack that knows more of a NIC.
type NICInfo interface {
	// Users are who uses a NIC, one text each.
	Users(k tenant.Key) []string
	// Socket is the NIC's door; "" if there is none.
	Socket(k tenant.Key) string
}

// An Accountant is a Rack whose NICs count, and go on counting where they are moved to.
type CounterKeeper interface {
	// Counted is what a NIC has counted, here and on hosts before; "": nothing, or it is not here.
	Counted(k tenant.Key) string
	// Recount has a NIC go on from what Counted has said, on this host or another: moved says that it was another, and so that what it counted here before
	// is part of it.
	Recount(k tenant.Key, counted string, moved bool)
}

// NoRack is a rack without room: it takes everything and does nothing.
type NoProvisioner struct{}

func (NoProvisioner) Put(*tenant.Tenant, *tenant.Network, *tenant.NIC) error { return nil }
func (NoProvisioner) Remove([]tenant.Key, bool) map[tenant.Key]error         { return nil }
func (NoProvisioner) Enforce(*tenant.World)                                  {}
func (NoProvisioner) Connect(*overlay.Map) error                             { return nil }

// A reconciler makes the Provisioner's NICs those that a world declares. Its methods are called with Plane.changing held.
type reconciler struct {
	cfg          *Config
	journal      *Journal
	updates      *feed[update]
	registration *registration
	states       *nicStates
	lax          atomic.Bool // the last rules could not be enforced
}

// here reports whether a NIC belongs into this host's rack. One that may be anywhere has a door on
// every host, and is where it is open (places.go).
func (c *reconciler) here(n *tenant.NIC) bool {
	if c.registration.reason() != "" {
		return false
	}
	return n.Spec.Host == "" || n.Spec.Host == anywhere || n.Spec.Host == c.cfg.Host
}

// anywhere is how a file may spell that a NIC has no host.
const anywhere = "anywhere"

// reconcile makes the rack what the world says: what is gone goes, then the rules, then what is
// new comes. Without keys that is for all NICs, else for these. changing is held. It returns what
// did not work, and reports NICs whose status has changed to those who watch.
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
	failures := c.pull(gone, true) // whoever took them out of the world has decided
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

// putIn puts a NIC into the rack, if it is not there as it should be.
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

// failed is a status that says why, since when it is not what it was.
func (c *reconciler) failed(old Status, why string) Status {
	s := Status{State: Failed, Reason: why, Since: old.Since}
	if old.State != Failed {
		s.Since = time.Now()
	}
	return s
}

// vacate pulls out the NICs that a change takes from this host, before it is committed. If one
// is in use, all stay, and nothing happens. changing is held.
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
		for key := range failures { // it may be half out: to have it again, it has to be put in again
			c.states.set(key, func(s *nicState) { s.nic = nil })
		}
	}
	c.reconcile(old, nil) // what was pulled out comes back
	return &problems
}

// pull pulls NICs out of the rack, and returns why some are still there. changing is held.
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
			err = fmt.Errorf("a mistake of vrdma's, see the daemon's log: %v", r)
		}
	}()
	return f()
}
