package control

import (
	"cmp"
	"context"
	crand "crypto/rand"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"runtime/debug"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"vrdma.dev/vrdma/internal/budget"
	"vrdma.dev/vrdma/internal/events"
	"vrdma.dev/vrdma/internal/ratelimit"
	"vrdma.dev/vrdma/internal/tenancy/store"
	"vrdma.dev/vrdma/internal/tenancy/tenant"
)

// Config is the configuration of a Plane.
type Config struct {
	// Store is a store.Remote if daemons of other hosts share it. Otherwise every NIC that is not pinned to another
	// host is here, and neither hosts nor placements are stored.
	Store       store.Store
	Provisioner Provisioner // nil: NoProvisioner
	Host        string      // this host's name in spec.host
	// Self is how other hosts reach this one at first (Announce). Identity distinguishes its daemon from others that
	// use its name. It does not change at a restart.
	Self     tenant.HostSpec
	Identity string
	// Boot is that of the daemon that this one takes over from; "": none. The plane then writes nothing to the store, and
	// changes no NIC after Open, before Continue.
	Boot string
	Log  *slog.Logger
	// Tenants is open while a tenant has administrators; nil: they are not admitted.
	Tenants Tenants
	// Journal records events, also those of other parts of the daemon; nil: the Plane makes one.
	Journal *Journal
	// Workloads are the containers that have NICs; nil: there are none.
	Workloads Workloads
	// Budget has what tenants hold on this host; nil: nothing is counted.
	Budget *budget.Ledger
}

// Tenants is the socket at which administrators of tenants connect.
type Tenants interface {
	// AdmitTenants opens the socket, or closes it. It may be called again.
	AdmitTenants(admit bool) error
}

// A Plane is the control plane of one daemon. It makes changes; its parts own the rest of the state.
//
// Lock order: changing, placements.mu, registration.mu, overlayMap.mu, then snapshots.mu and nicStates.mu, then those
// of the journal and of feeds. A goroutine that waits until programs release a NIC holds changing and nothing else,
// because a program that waits for placements.mu may have to release it.
type Plane struct {
	cfg          Config
	journal      *Journal
	updates      *feed[update] // of objects and their status
	snapshots    *snapshots
	health       *storeHealth
	registration *registration
	states       *nicStates
	reconciler   *reconciler
	overlay      *overlayMap
	placements   *placements

	opened   time.Time
	answered atomic.Bool // a shared store has answered since opened

	changes sync.WaitGroup // goroutines that Close waits for
	stop    context.CancelFunc
	ended   context.Context
	again   wakeup                 // makes retry call the Provisioner again
	paces   ratelimit.Buckets[int] // of changes, by uid
	held    atomic.Int64           // the generation whose rules are enforced

	paused   atomic.Bool // the next daemon takes over, see Pause
	begin    []func()    // the goroutines that Continue starts
	changing sync.Mutex  // held from the check of a change until the Provisioner has it
	rnd      *rand.Rand  // guarded by changing
}

// A wakeup wakes one goroutine.
type wakeup chan struct{}

func (w wakeup) wake() {
	select {
	case w <- struct{}{}:
	default:
	}
}

// An update is an object that is new or has changed, or whose status has.
type update struct {
	object  tenant.Object
	deleted bool
}

// keptUpdates is how many updates are kept for watchers.
const keptUpdates = 1000

// Open loads the world and makes the Provisioner follow it.
func Open(cfg Config) (*Plane, error) {
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.DiscardHandler)
	}
	if cfg.Provisioner == nil {
		cfg.Provisioner = NoProvisioner{}
	}
	snap, err := load(cfg.Store, &tenant.World{})
	if err != nil {
		return nil, err
	}
	p := newPlane(cfg)
	p.changing.Lock()
	if cfg.Boot == "" {
		defer p.changing.Unlock()
	}
	p.snapshots.amend(func(s *snapshot) { *s = *snap })
	p.report(nil, snap.problems)
	work := []func(){
		func() { p.journal.write(p.ended, cfg.Log) },
		p.retry,
		func() { p.follow(p.snapshots.now.Load().revision + 1) },
	}
	if p.health.shared() {
		if cfg.Boot == "" {
			if err := p.join(); err != nil {
				p.Close()
				return nil, err
			}
		}
		work = append(work, p.tidyUp)
	}
	p.settle(p.World(), nil)
	if cfg.Boot != "" {
		p.begin = work
		return p, nil
	}
	for _, f := range work {
		p.changes.Go(f)
	}
	return p, nil
}

// newPlane makes the parts of a plane and connects them.
func newPlane(cfg Config) *Plane {
	p := &Plane{
		cfg: cfg, journal: cmp.Or(cfg.Journal, NewJournal()), updates: &feed[update]{most: keptUpdates},
		rnd: rand.New(rand.NewPCG(rand.Uint64(), rand.Uint64())), again: make(wakeup, 1),
		paces: ratelimit.Buckets[int]{Rate: changeRate, Burst: changeBurst, Most: mostPaces},
	}
	p.opened = time.Now()
	p.ended, p.stop = context.WithCancel(context.Background())
	c := &p.cfg
	p.snapshots = &snapshots{cfg: c, moved: make(chan struct{})}
	p.health = &storeHealth{cfg: c, journal: p.journal}
	p.states = &nicStates{of: make(map[tenant.Key]*nicState)}
	p.registration = &registration{cfg: c, journal: p.journal, snapshots: p.snapshots, health: p.health, boot: cmp.Or(c.Boot, crand.Text())}
	p.registration.spec.Store(&c.Self)
	p.reconciler = &reconciler{cfg: c, journal: p.journal, updates: p.updates, registration: p.registration, states: p.states}
	p.overlay = &overlayMap{cfg: c, journal: p.journal, snapshots: p.snapshots, health: p.health, registration: p.registration, states: p.states, again: p.again}
	p.placements = &placements{
		cfg: c, updates: p.updates, snapshots: p.snapshots, health: p.health, registration: p.registration, overlay: p.overlay, ended: p.ended,
	}
	return p
}

// join registers this host. If the store is away, tidy registers it later.
func (p *Plane) join() error {
	err := p.registration.registerFirst()
	if err != nil && p.health.away() == "" {
		return err
	}
	if err != nil {
		p.journal.Record(events.Event{Verb: events.Failed, Reason: "this host is not registered yet: " + err.Error()})
		return nil
	}
	p.placements.resume()
	return nil
}

// Close ends the plane. The Provisioner keeps its NICs.
func (p *Plane) Close() {
	p.stop()
	p.changes.Wait()
	if p.registration.release != nil {
		p.registration.release()
	}
}

// World is the current world.
func (p *Plane) World() *tenant.World { return p.snapshots.now.Load().world }

// Generation is the revision of the last change of the declared objects whose rules are enforced here. A NIC that
// cannot be created or removed does not delay it: that is in the NIC's status, and one tenant's NIC must not hide that
// the rules of all are enforced. Nor does a failure of the overlay, which has its event. Rules that cannot be enforced
// delay it until a retry succeeds.
func (p *Plane) Generation() int64 { return p.held.Load() }

// holds records that the rules of a revision are enforced.
func (p *Plane) holds(generation int64) {
	if p.reconciler.lax.Load() {
		return
	}
	for {
		old := p.held.Load()
		if generation <= old || p.held.CompareAndSwap(old, generation) {
			return
		}
	}
}

// Self is this host as others reach it.
func (p *Plane) Self() tenant.HostSpec { return p.registration.announced() }

// Fenced says why this host serves no declared NIC; "" if it does.
func (p *Plane) Fenced() string { return p.registration.reason() }

// Health says whether what the daemon knows is what the store says, and since when it is not.
func (p *Plane) Health() store.Health { return p.health.now() }

// Age is how old the daemon's knowledge of the store may be; 0 while it is in step.
func (p *Plane) Age() time.Duration { return p.health.staleness() }

// Claim places a NIC on this host, because a program opens it. The error says where the NIC is instead. Claim waits for
// the store only if other hosts could open the NIC, too.
func (p *Plane) Claim(k tenant.Key) error { return p.placements.claim(k) }

// Release gives up a NIC that has no users on this host, so that another host can claim it. Without Release that happens within
// tidyTime.
func (p *Plane) Release(k tenant.Key) error {
	info, knows := p.cfg.Provisioner.(NICInfo)
	if !knows {
		return nil
	}
	return p.placements.release(k, info)
}

// Where is the host that has a NIC; "" if that is this host, or none.
func (p *Plane) Where(k tenant.Key) string { return p.placements.where(k) }

// Announce changes how other hosts reach this one. After an error nothing has changed.
func (p *Plane) Announce(spec tenant.HostSpec) error {
	p.changing.Lock()
	defer p.changing.Unlock()
	if p.health.shared() {
		if why := cmp.Or(p.registration.reason(), p.health.alarm(), p.health.away()); why != "" {
			return errors.New(why)
		}
	}
	old := p.registration.spec.Swap(&spec)
	if p.health.shared() {
		if err := p.registerAnew(); err != nil {
			p.registration.spec.Store(old)
			return err
		}
	}
	p.overlay.update()
	return nil
}

// registerAnew writes this host's entry again. changing is held.
func (p *Plane) registerAnew() (err error) {
	for range mostTries {
		if err = p.registration.register(); !errors.Is(err, errConflict) {
			return err
		}
		if err := p.refresh(); err != nil {
			return err
		}
	}
	return err
}

// Problems are the entries of the store that were left out of the world, and why.
func (p *Plane) Problems() []string { return p.snapshots.now.Load().problems }

// Record records an event. Any goroutine may call it, and none waits. The events of one verb and object are limited;
// those that are dropped are counted.
func (p *Plane) Record(e events.Event) { p.journal.Record(e) }

// report records the problems of a store that are new.
func (p *Plane) report(old, now []string) {
	known := make(map[string]bool)
	for _, text := range old {
		known[text] = true
	}
	for _, text := range now {
		if !known[text] {
			p.journal.Record(events.Event{Verb: events.Refused, Reason: text})
		}
	}
}

// settle makes the Provisioner and the watchers follow a world: all NICs, or those of keys. changing is held.
func (p *Plane) settle(w *tenant.World, keys []tenant.Key) (warnings []string) {
	return p.settleSome(w, keys, true)
}

// settleFor is settle after a change. A change of rules only does not change the overlay map.
func (p *Plane) settleFor(w *tenant.World, effects []tenant.Effect) (warnings []string) {
	moved := slices.ContainsFunc(effects, func(e tenant.Effect) bool {
		return e.Changed() && e.Key.Kind != tenant.KindPolicy && e.Key.Kind != tenant.KindFault && e.Key.Kind != tenant.KindTenant
	})
	return p.settleSome(w, p.touched(w, effects), moved)
}

func (p *Plane) settleSome(w *tenant.World, keys []tenant.Key, moved bool) (warnings []string) {
	generation := p.snapshots.now.Load().generation
	defer p.holds(generation)
	p.health.tell() // connections are re-evaluated, and not because the store was away
	warnings = p.reconciler.reconcile(w, keys)
	p.health.tell()
	if moved || p.overlay.lost.Load() {
		warnings = append(warnings, p.overlay.update()...)
	}
	p.admitAdministrators(w)
	if p.unfinished() {
		p.again.wake()
	}
	return warnings
}

// errConflict: another daemon has written to the store meanwhile.
var errConflict = errors.New("other daemons keep changing the store: try again")

// mostTries is how often a change is checked again because other daemons were faster.
const mostTries = 16

// Change makes a change for a caller. When it returns, the change is checked, committed and provisioned, or nothing has
// happened. Warnings are what the Provisioner could not do yet.
func (p *Plane) Change(who tenant.Caller, by events.Actor, c tenant.Change, dryRun bool) (effects []tenant.Effect, warnings []string, err error) {
	if p.paused.Load() {
		return nil, nil, errors.New("the daemon is being upgraded: try again in a moment")
	}
	p.changing.Lock()
	defer p.changing.Unlock()
	for range mostTries {
		effects, warnings, err = p.change(who, by, c, dryRun)
		if !errors.Is(err, errConflict) {
			break
		}
		if err := p.refresh(); err != nil {
			return nil, nil, err
		}
	}
	if err != nil && !dryRun {
		// Counted by caller, because a caller can name any number of objects.
		kind := eventKind{events.Refused, tenant.Key{Name: fmt.Sprintf("user %d", by.UID)}}
		p.journal.recordAs(kind, events.Event{Verb: events.Refused, Object: subject(c), Reason: brief(err), By: by})
	}
	return effects, warnings, err
}

// subject is the object of a refused change of one object, if the name is valid. Invented names are not kept.
func subject(c tenant.Change) (k tenant.Key) {
	switch {
	case len(c.Put) == 1 && len(c.Delete) == 0:
		k = c.Put[0].Key()
	case len(c.Put) == 0 && len(c.Delete) == 1:
		k = c.Delete[0]
	}
	if !k.Valid() {
		return tenant.Key{}
	}
	return k
}

// brief is an error as an event keeps it: the first of many problems, and the beginning of a long text.
func brief(err error) string {
	const most = 1000
	problems := errorOf(err).Problems
	var e *Error
	if errors.As(err, &e) {
		problems = e.Problems
	}
	var b strings.Builder
	for i, text := range problems {
		if b.Len()+len(text) > most && len(problems) > 1 {
			fmt.Fprintf(&b, " and %d more", len(problems)-i)
			return b.String()
		}
		if i > 0 {
			b.WriteByte('\n')
		}
		b.WriteString(text[:min(len(text), most)])
	}
	return b.String()
}

// change tries once. changing is held.
func (p *Plane) change(who tenant.Caller, by events.Actor, c tenant.Change, dryRun bool) ([]tenant.Effect, []string, error) {
	old := p.snapshots.now.Load()
	if err := old.world.May(who, c); err != nil {
		return nil, nil, deniedOf(err)
	}
	put, passed, err := p.registration.ours(old, c.Put)
	if err != nil {
		return nil, nil, errorOf(err)
	}
	rest, gone, conditions, writes, err := p.registration.forget(old, c.Delete)
	if err != nil {
		return nil, nil, errorOf(err)
	}
	c.Put, c.Delete = put, rest
	next, effects, err := old.world.Next(c, p.rnd)
	if err != nil {
		return nil, nil, errorOf(err)
	}
	passed = append(passed, hostWarnings(p.cfg.Host, old, next, effects)...)
	if dryRun {
		return append(effects, gone...), passed, nil
	}
	if why := cmp.Or(p.health.alarm(), p.health.away()); why != "" {
		return nil, nil, errors.New(why + "; nothing can be changed until it is back")
	}
	if !c.Force {
		if err := p.placements.abroad(old, next, effects); err != nil {
			return nil, nil, err
		}
	}
	if err := p.reconciler.vacate(old.world, next, effects, c.Force); err != nil {
		return nil, nil, err
	}
	if err := p.commit(old, next, append(effects, gone...), by, conditions, writes); err != nil {
		p.reconciler.reconcile(old.world, nil) // the removed NICs are created again
		return nil, nil, err
	}
	p.announce(append(effects, gone...), by)
	return append(effects, gone...), append(passed, p.settleFor(next, append(effects, gone...))...), nil
}

// commit writes the changed objects, and besides what has to change with them.
func (p *Plane) commit(old *snapshot, next *tenant.World, effects []tenant.Effect, by events.Actor, conditions []store.Condition, besides []store.Write) error {
	writes, err := writesOf(slices.DeleteFunc(slices.Clone(effects), func(e tenant.Effect) bool { return old.hosts[e.Key.Name] != nil && e.Key.Kind == tenant.KindHost }))
	if err != nil {
		return err
	}
	writes = append(writes, besides...)
	for _, w := range writes {
		if old.newer[w.Key] {
			return fmt.Errorf("store entry %q: %w; change it there", w.Key, errNewer)
		}
	}
	if len(writes) == 0 {
		p.snapshots.amend(func(s *snapshot) { s.world = next })
		return nil
	}
	conditions = append(conditions, store.Condition{Key: keyGeneration, Revision: old.generation})
	writes = append(writes, store.Write{Key: keyGeneration, Value: fmt.Appendf(nil, `{"schema":%d,"uid":%d,"pid":%d}`, store.Schema, by.UID, by.Pid)})
	return p.snapshots.write(old, conditions, writes, func(s *snapshot, revision int64) {
		s.world, s.generation = next, revision
		s.erase(writes, revision)
	})
}

// announce reports what has changed.
func (p *Plane) announce(effects []tenant.Effect, by events.Actor) {
	var recorded []events.Event
	var updates []update
	now := time.Now()
	for _, e := range effects {
		switch {
		case !e.Changed():
		case e.New == nil:
			recorded = append(recorded, events.Event{Time: now, Verb: events.Deleted, Object: e.Key, By: by})
			updates = append(updates, update{e.Old, true})
		default:
			recorded = append(recorded, events.Event{Time: now, Verb: events.Applied, Object: e.Key, Reason: e.What(), By: by})
			updates = append(updates, update{object: e.New})
		}
	}
	p.journal.changes(recorded)
	p.updates.add(updates...)
}

// The first and the longest pause before the Provisioner is called again.
const (
	retryFirst = time.Second
	retryMost  = 30 * time.Second
)

// retry calls the Provisioner again for what it could not do.
func (p *Plane) retry() {
	for {
		select {
		case <-p.again:
		case <-p.ended.Done():
			return
		}
		for wait := retryFirst; p.unfinished(); wait = min(2*wait, retryMost) {
			select {
			case <-time.After(wait):
			case <-p.again:
				wait = retryFirst / 2
			case <-p.ended.Done():
				return
			}
			p.changing.Lock()
			now := p.snapshots.now.Load()
			p.reconciler.reconcile(now.world, nil)
			p.holds(now.generation)
			p.overlay.update() // a NIC that was created only now may be the first of its network
			p.changing.Unlock()
		}
	}
}

// errorOf is an error as it is sent, one problem a line.
func errorOf(err error) *Error {
	var list tenant.Errors
	if !errors.As(err, &list) {
		return &Error{Problems: []string{err.Error()}}
	}
	out := &Error{Problems: make([]string, len(list)), Errors: list}
	for i, e := range list {
		out.Problems[i] = e.Error()
	}
	return out
}

// deniedOf is the error for a caller that is not authorised.
func deniedOf(err error) *Error {
	e := errorOf(err)
	e.Denied = true
	return e
}

func stack() string { return string(debug.Stack()) }

// admitAdministrators opens the tenants' socket while a tenant has administrators.
func (p *Plane) admitAdministrators(w *tenant.World) {
	if p.cfg.Tenants == nil {
		return
	}
	admit := false
	for _, o := range w.Objects(tenant.KindTenant) {
		who := &o.(*tenant.Tenant).Spec.Administrators
		admit = admit || len(who.UIDs)+len(who.GIDs) > 0
	}
	if err := p.cfg.Tenants.AdmitTenants(admit); err != nil {
		p.cfg.Log.Warn("administrators of tenants cannot reach the daemon: the tenants' socket cannot be made", "error", err)
	}
}

// unfinished reports whether the Provisioner still has something to do.
func (p *Plane) unfinished() bool {
	return p.overlay.lost.Load() || p.reconciler.lax.Load() || p.states.failed()
}
