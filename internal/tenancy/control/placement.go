package control

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	"vrdma.dev/vrdma/internal/events"
	"vrdma.dev/vrdma/internal/tenancy/store"
	"vrdma.dev/vrdma/internal/tenancy/tenant"
)

// A placement is the host of a NIC. The host writes it, by compare-and-swap, when a program opens the NIC there. The
// generation counts the moves. A placement does not expire. While programs have the NIC open on one host it cannot be
// opened on another, whatever became of the host, until the operator decides (with spec.host, or by deleting the host).
//
//	nowhere ──first open on a──▶ on a, open ──last program gone──▶ on a
//	                                  ▲                              │ opened on b
//	                                  └────────── on b, open ◀───────┘
//
// A NIC that spec.host pins is on that host, whatever its placement says. The placement then says only whether programs
// have it open.
type placement struct {
	Schema     int    `json:"schema"`
	Host       string `json:"host"`
	Generation int64  `json:"generation"`
	Open       bool   `json:"open,omitempty"`
	// Counted are the NIC's counters when the last host released it, in the Provisioner's format. The NIC continues
	// from there.
	Counted string `json:"counted,omitempty"`

	revision int64
}

func placementKey(n *tenant.NIC) string {
	return prefixPlace + n.Metadata.Tenant + "/" + n.Spec.Network + "/" + n.Metadata.Name
}

// nicAt is the NIC of a key below place/.
func nicAt(key string) (k tenant.Key, ok bool) {
	parts := strings.Split(key, "/")
	if len(parts) != 4 {
		return k, false
	}
	k = tenant.Key{Kind: tenant.KindNIC, Tenant: parts[1], Name: parts[3]}
	return k, k.Valid()
}

func decodePlacement(e store.Entry) (placement, error) {
	p := placement{revision: e.Revision}
	err := readValue(e, &p, &p.Schema)
	if err == nil && (p.Host == "" || p.Generation < 1) {
		err = fmt.Errorf("store entry %.200q names no host or generation", e.Key)
	}
	return p, err
}

// placements says which host has which NIC, in a store that other hosts share.
type placements struct {
	cfg          *Config
	updates      *feed[update]
	snapshots    *snapshots
	health       *storeHealth
	registration *registration
	overlay      *overlayMap
	ended        context.Context

	mu     sync.Mutex          // held while a placement is written
	moving map[tenant.Key]bool // guarded by mu; NICs that move with their programs, see migration.go
}

// claim implements Plane.Claim.
func (pl *placements) claim(k tenant.Key) error {
	if !pl.health.shared() {
		return nil
	}
	pl.mu.Lock()
	defer pl.mu.Unlock()
	for range mostTries {
		s, moved := pl.snapshots.current()
		n := s.world.NIC(k.Tenant, k.Name)
		if n == nil {
			return fmt.Errorf("%v is not declared any more", k)
		}
		at, err := pl.claimed(s, n)
		if err != nil || at == s.placements[k] {
			return err
		}
		pinned, before := n.Spec.Host != "", s.placements[k].Host == pl.cfg.Host
		if (pinned || before) && pl.health.away() != "" {
			return nil // it was here before the store went away; tidy writes the placement
		}
		ok, err := pl.move(s, n, at)
		switch {
		case err != nil && (pinned || before):
			return nil
		case err != nil:
			return fmt.Errorf("%v is on no host yet, and this host cannot be recorded as its host: %w", k, err)
		case ok:
			pl.overlay.update()
			return nil
		}
		if err := pl.changed(k, moved); err != nil {
			return err
		}
	}
	return fmt.Errorf("%v: %w", k, errConflict)
}

// changed waits until this daemon has read what another one wrote faster.
func (pl *placements) changed(k tenant.Key, moved <-chan struct{}) error {
	select {
	case <-moved:
		return nil
	case <-time.After(claimTime):
		return fmt.Errorf("%v: %w", k, errConflict)
	case <-pl.ended.Done():
		return store.ErrClosed
	}
}

// mostCounted bounds the counters in a placement.
const mostCounted = 16 << 10

// claimTime is how long a claim waits for what other daemons have written.
const claimTime = 5 * time.Second

// claimed is the placement of a NIC that a program opens here, or why it cannot be opened.
func (pl *placements) claimed(s *snapshot, n *tenant.NIC) (placement, error) {
	at := s.placements[n.Key()]
	switch why := pl.registration.reason(); {
	case why != "":
		return at, fmt.Errorf("%v: %s", n.Key(), why)
	case n.Spec.Host != "" && n.Spec.Host != pl.cfg.Host:
		return at, fmt.Errorf("%v belongs to host %s: open it there", n.Key(), n.Spec.Host)
	case n.Spec.Host == "" && at.Open && at.Host != pl.cfg.Host:
		advice := "end the programs that have it open there"
		if s.live[at.Host] == "" {
			advice = fmt.Sprintf("that host is gone; if it will not come back, vrdma delete host %s", at.Host)
		}
		return at, fmt.Errorf("%v is on host %s: open it there, or %s", n.Key(), at.Host, advice)
	case at.Host == pl.cfg.Host && at.Open:
		return at, nil
	}
	next := placement{Schema: store.Schema, Host: pl.cfg.Host, Generation: at.Generation, Open: true, Counted: at.Counted}
	if at.Host != pl.cfg.Host {
		next.Generation++
	}
	return next, nil
}

// move writes a placement, on the condition that neither it nor the world has changed since s. mu is held.
func (pl *placements) move(s *snapshot, n *tenant.NIC, to placement) (ok bool, err error) {
	if why := pl.health.alarm(); why != "" {
		return false, fmt.Errorf("%s", why)
	}
	value, err := json.Marshal(to)
	if err != nil {
		return false, err
	}
	conditions := []store.Condition{{Key: placementKey(n), Revision: s.placements[n.Key()].revision}, {Key: keyGeneration, Revision: s.generation}}
	revision, ok, err := pl.cfg.Store.Commit(conditions, []store.Write{{Key: placementKey(n), Value: value}})
	if err != nil || !ok {
		return false, err
	}
	if a, is := pl.cfg.Provisioner.(CounterKeeper); is && to.Open && to.Counted != "" {
		a.Recount(n.Key(), to.Counted, s.placements[n.Key()].Host != to.Host)
	}
	to.revision = revision
	pl.snapshots.amend(func(s *snapshot) {
		if s.wrote(revision) {
			s.setPlacement(n.Key(), to)
		}
	})
	pl.updates.add(update{object: n})
	return true, nil
}

// where is the host of a NIC, if that is another one; "": it is this host, or none.
func (pl *placements) where(k tenant.Key) string {
	s := pl.snapshots.now.Load()
	if n := s.world.NIC(k.Tenant, k.Name); n != nil {
		if at := s.where(n, pl.cfg.Host, pl.health.shared()); at != pl.cfg.Host {
			return at
		}
	}
	return ""
}

// tidyTime is how often tidy runs.
var tidyTime = time.Second

// tidyUp runs tidy while the plane is open.
func (p *Plane) tidyUp() {
	tick := time.NewTicker(tidyTime)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
			p.tidy()
		case <-p.ended.Done():
			return
		}
	}
}

// tidy writes what could not be written before, releases NICs that no program has open any more, and disconnects the
// programs of NICs that are on another host by now.
func (p *Plane) tidy() {
	p.health.check()
	if p.registration.reason() != "" || p.health.away() != "" || p.health.alarm() != "" {
		return
	}
	if !p.registration.registered.Load() || p.snapshots.now.Load().hosts[p.cfg.Host] == nil {
		if err := p.registration.register(); err != nil {
			p.journal.Record(events.Event{Verb: events.Failed, Reason: "this host cannot be registered: " + err.Error()})
			return
		}
	}
	info, knows := p.cfg.Provisioner.(NICInfo)
	if !knows {
		return
	}
	keys := p.states.provisioned()
	for k, at := range p.snapshots.now.Load().placements {
		if at.Open && at.Host == p.cfg.Host && p.states.get(k).nic == nil {
			keys = append(keys, k) // it was taken from this host, and no program here has it any more
		}
	}
	for _, key := range keys {
		if host := p.placements.tidyNIC(key, info); host != "" {
			go p.evict(key, host) // Remove waits for programs, and one of them may wait for the placements
		}
	}
}

func (pl *placements) tidyNIC(k tenant.Key, info NICInfo) (elsewhere string) {
	pl.mu.Lock()
	defer pl.mu.Unlock()
	s := pl.snapshots.now.Load()
	n := s.world.NIC(k.Tenant, k.Name)
	if n == nil || pl.moving[k] {
		return ""
	}
	at, used := s.placements[k], len(info.Users(k)) > 0
	switch {
	case used && n.Spec.Host == "" && at.Open && at.Host != pl.cfg.Host:
		return at.Host
	case used && at != (placement{}) && at.Host == pl.cfg.Host && at.Open:
	case used:
		if next, err := pl.claimed(s, n); err == nil {
			if ok, _ := pl.move(s, n, next); ok { // otherwise the next time
				pl.overlay.update() // it may have had no host
			}
		}
	case at.Open && at.Host == pl.cfg.Host:
		pl.move(s, n, pl.left(k, at))
	}
	return ""
}

// left is the placement of a NIC that has no users any more.
func (pl *placements) left(k tenant.Key, at placement) placement {
	at.Open = false
	if a, is := pl.cfg.Provisioner.(CounterKeeper); is {
		if counted := a.Counted(k); counted != "" && len(counted) <= mostCounted {
			at.Counted = counted
		}
	}
	return at
}

// release implements Plane.Release.
func (pl *placements) release(k tenant.Key, info NICInfo) error {
	if !pl.health.shared() || pl.ended.Err() != nil { // the next daemon releases what this one had: resume
		return nil
	}
	pl.mu.Lock()
	defer pl.mu.Unlock()
	for range mostTries {
		s, moved := pl.snapshots.current()
		n, at := s.world.NIC(k.Tenant, k.Name), s.placements[k]
		if n == nil || pl.moving[k] || !at.Open || at.Host != pl.cfg.Host || len(info.Users(k)) > 0 {
			return nil
		}
		if why := pl.health.away(); why != "" {
			return errors.New(why)
		}
		ok, err := pl.move(s, n, pl.left(k, at))
		if err != nil || ok {
			return err
		}
		if err := pl.changed(k, moved); err != nil {
			return err
		}
	}
	return fmt.Errorf("%v: %w", k, errConflict)
}

// evict disconnects the programs here from a NIC that is on another host by now.
func (p *Plane) evict(k tenant.Key, host string) {
	p.changing.Lock()
	defer p.changing.Unlock()
	if p.placements.where(k) == "" || p.states.get(k).nic == nil {
		return
	}
	p.journal.Record(events.Event{Verb: events.Revoked, Object: k, Reason: "it is on host " + host + " by now: it was opened there while this host had no store"})
	if err := try(p.cfg.Log, func() error { return p.cfg.Provisioner.Remove([]tenant.Key{k}, true)[k] }); err != nil {
		return // it is tried again
	}
	p.states.free(k)
	p.reconciler.reconcile(p.World(), []tenant.Key{k})
}

// resume releases, when the plane opens, the NICs that the previous daemon had open.
func (pl *placements) resume() {
	pl.mu.Lock()
	defer pl.mu.Unlock()
	s := pl.snapshots.now.Load()
	var conditions []store.Condition
	var writes []store.Write
	fresh := make(map[tenant.Key]placement)
	for k, at := range s.placements {
		n := s.world.NIC(k.Tenant, k.Name)
		if n == nil || at.Host != pl.cfg.Host || !at.Open {
			continue
		}
		conditions = append(conditions, store.Condition{Key: placementKey(n), Revision: at.revision})
		at.Open = false
		value, err := json.Marshal(at)
		if err != nil {
			continue
		}
		writes = append(writes, store.Write{Key: placementKey(n), Value: value})
		fresh[k] = at
	}
	const most = 50 // etcd allows few operations in a transaction; tidy releases the others one by one
	if len(writes) == 0 || len(writes) > most {
		return
	}
	revision, ok, err := pl.cfg.Store.Commit(conditions, writes)
	if err != nil || !ok {
		return
	}
	pl.snapshots.amend(func(s *snapshot) {
		if !s.wrote(revision) {
			return
		}
		for k, at := range fresh {
			at.revision = revision
			s.setPlacement(k, at)
		}
	})
}

// abroad returns why NICs that a change deletes or moves are in use on other hosts.
func (pl *placements) abroad(s *snapshot, next *tenant.World, effects []tenant.Effect) error {
	if !pl.health.shared() {
		return nil
	}
	var problems Error
	for _, e := range effects {
		n, is := e.Old.(*tenant.NIC)
		at := s.placements[e.Key]
		if !is || !at.Open || at.Host == pl.cfg.Host {
			continue
		}
		if now := next.NIC(e.Key.Tenant, e.Key.Name); now != nil && (now.Spec.Host == n.Spec.Host || now.Spec.Host == at.Host || now.Spec.Host == "") {
			continue
		}
		problems.InUse = true
		problems.Problems = append(problems.Problems, fmt.Sprintf("%v is in use on host %s: end that first, or use --force", e.Key, at.Host))
	}
	if problems.InUse {
		return &problems
	}
	return nil
}
