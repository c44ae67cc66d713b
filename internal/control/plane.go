package control

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"runtime/debug"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"vrdma/internal/store"
	"vrdma/internal/tenant"
)

// Config is what a Plane needs.
type Config struct {
	Store   store.Store
	Rack    Rack   // nil: NoRack
	Host    string // this host's name, as NICs name it
	Version string // of the program
	Log     *slog.Logger
	// Changed is told of every new world, after the rack has it; nil: nobody is.
	Changed func(w *tenant.World)
	// Overdrawn is told of a limit that somebody has met; nil: nobody is.
	Overdrawn func(error)
}

// A Plane is the control plane of one daemon. Lock order: changing, mu, journal.mu, those of
// feeds.
type Plane struct {
	cfg     Config
	journal *journal
	now     atomic.Pointer[snapshot]
	updates feed[update] // of objects and their status
	changes sync.WaitGroup
	stop    context.CancelFunc
	ended   context.Context

	// changing is held from the check of a change until the rack has it.
	changing sync.Mutex
	paces    paces
	rnd      *rand.Rand    // guarded by changing
	again    chan struct{} // has the rack tried again

	mu    sync.Mutex
	slots map[tenant.Key]*slot // guarded by mu
}

// An update is an object that is new or has changed, or whose status has.
type update struct {
	object  tenant.Object
	deleted bool
}

// keptUpdates is how many updates are kept for those who watch.
const keptUpdates = 1000

// Open loads the world and has the rack make it so.
func Open(cfg Config) (*Plane, error) {
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.DiscardHandler)
	}
	if cfg.Rack == nil {
		cfg.Rack = NoRack{}
	}
	snap, err := load(cfg.Store, &tenant.World{})
	if err != nil {
		return nil, err
	}
	p := &Plane{
		cfg: cfg, journal: newJournal(), updates: feed[update]{most: keptUpdates},
		rnd:   rand.New(rand.NewPCG(rand.Uint64(), rand.Uint64())),
		again: make(chan struct{}, 1), slots: make(map[tenant.Key]*slot),
	}
	p.ended, p.stop = context.WithCancel(context.Background())
	p.changing.Lock()
	defer p.changing.Unlock()
	p.take(snap)
	p.settle(snap.world)
	for _, f := range []func(){
		func() { p.journal.write(p.ended, cfg.Log) },
		p.retry,
		func() { p.follow(snap.revision + 1) },
	} {
		p.changes.Go(f)
	}
	if remote, shared := cfg.Store.(store.Remote); shared {
		p.changes.Go(func() { p.heed(remote) })
	}
	return p, nil
}

// Close ends it. The rack keeps what it has.
func (p *Plane) Close() {
	p.stop()
	p.changes.Wait()
}

// World is the world as it is now.
func (p *Plane) World() *tenant.World { return p.now.Load().world }

// Problems are the entries of the store that were left out of the world, and why.
func (p *Plane) Problems() []string { return p.now.Load().problems }

// Record takes an event. Any goroutine may call it, and none waits. Of one verb and object only
// so many a second are kept; the others are counted.
func (p *Plane) Record(e Event) { p.journal.record(e) }

// take makes a snapshot the one that is served, and reports what is wrong with it.
func (p *Plane) take(snap *snapshot) {
	old := p.now.Load()
	p.now.Store(snap)
	known := make(map[string]bool)
	if old != nil {
		for _, text := range old.problems {
			known[text] = true
		}
	}
	for _, text := range snap.problems {
		if !known[text] {
			p.journal.record(Event{Verb: EventRefused, Reason: text})
		}
	}
}

// settle has the rack follow, and those who want to know. changing is held.
func (p *Plane) settle(w *tenant.World) (warnings []string) {
	warnings = p.reconcile(w)
	if p.cfg.Changed != nil {
		p.cfg.Changed(w)
	}
	if p.unfinished() {
		select {
		case p.again <- struct{}{}:
		default:
		}
	}
	return warnings
}

// errConflict: somebody else has written to the store meanwhile.
var errConflict = errors.New("others keep changing the store: try again")

// mostTries is how often a change is checked again because others were faster.
const mostTries = 16

// Change makes a change on behalf of somebody. It is checked, committed and in the rack when
// this returns, or nothing has happened. Warnings are what the rack could not do yet.
func (p *Plane) Change(who tenant.Caller, by Actor, c tenant.Change, dryRun bool) (effects []tenant.Effect, warnings []string, err error) {
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
		// Counted by who asks: they can name as many objects as they like.
		kind := eventKind{EventRefused, tenant.Key{Name: fmt.Sprintf("user %d", by.UID)}}
		p.journal.recordAs(kind, Event{Verb: EventRefused, Object: subject(c), Reason: brief(err), By: by})
	}
	return effects, warnings, err
}

// subject is the object of a refused change of one object, if there can be one of that name: what
// somebody makes up is not kept.
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

// brief is an error as an event keeps it: of a thousand problems the first, and of a long text its
// beginning.
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
func (p *Plane) change(who tenant.Caller, by Actor, c tenant.Change, dryRun bool) ([]tenant.Effect, []string, error) {
	old := p.now.Load()
	if err := old.world.May(who, c); err != nil {
		return nil, nil, deniedOf(err)
	}
	next, effects, err := old.world.Next(c, p.rnd)
	if err != nil {
		return nil, nil, errorOf(err)
	}
	if dryRun {
		return effects, nil, nil
	}
	if err := p.changeable(); err != nil {
		return nil, nil, err
	}
	if err := p.vacate(old.world, next, effects, c.Force); err != nil {
		return nil, nil, err
	}
	snap, err := p.commit(old, next, effects, by)
	if err != nil {
		p.reconcile(old.world) // what was pulled out comes back
		return nil, nil, err
	}
	p.announce(snap, effects, by)
	return effects, p.settle(snap.world), nil
}

// commit writes what has changed.
func (p *Plane) commit(old *snapshot, next *tenant.World, effects []tenant.Effect, by Actor) (*snapshot, error) {
	writes, err := writesOf(effects)
	if err != nil {
		return nil, err
	}
	for _, w := range writes {
		if old.newer[w.Key] {
			return nil, fmt.Errorf("store entry %q: %w; change it there", w.Key, errNewer)
		}
	}
	snap := *old
	snap.world = next
	if len(writes) == 0 {
		return &snap, nil
	}
	conditions := []store.Condition{{Key: keyGeneration, Revision: old.generation}}
	writes = append(writes, store.Write{Key: keyGeneration, Value: fmt.Appendf(nil, `{"schema":%d,"uid":%d,"pid":%d}`, store.Schema, by.UID, by.Pid)})
	if !old.named {
		meta, condition, write := store.Name(p.cfg.Version)
		snap.meta, snap.named = meta, true
		conditions, writes = append(conditions, condition), append(writes, write)
	}
	revision, ok, err := p.cfg.Store.Commit(conditions, writes)
	switch {
	case err != nil:
		return nil, err
	case !ok:
		return nil, errConflict
	}
	snap.revision, snap.generation = revision, revision
	return &snap, nil
}

// announce makes a world the one that is served and tells of what has changed.
func (p *Plane) announce(snap *snapshot, effects []tenant.Effect, by Actor) {
	p.take(snap)
	var events []Event
	var updates []update
	now := time.Now()
	for _, e := range effects {
		switch {
		case !e.Changed():
		case e.New == nil:
			events = append(events, Event{Time: now, Verb: EventDeleted, Object: e.Key, By: by})
			updates = append(updates, update{e.Old, true})
		default:
			events = append(events, Event{Time: now, Verb: EventApplied, Object: e.Key, Reason: e.What(), By: by})
			updates = append(updates, update{object: e.New})
		}
	}
	p.journal.changes(events)
	p.updates.add(updates...)
}

// refresh takes over what others have written. changing is held.
func (p *Plane) refresh() error {
	snap, err := load(p.cfg.Store, p.World())
	if err != nil {
		return err
	}
	old := p.now.Load()
	if snap.revision == old.revision {
		return nil
	}
	if old.named && snap.meta.ID != old.meta.ID {
		return fmt.Errorf("the store is another one than before (it was %s, now %s): nothing is changed; restart the daemon if that is meant", old.meta.ID, snap.meta.ID)
	}
	effects := difference(old.world, snap.world)
	p.announce(snap, effects, Actor{UID: -1, Program: "another daemon"})
	p.settle(snap.world)
	return nil
}

// difference is what leads from one world to another.
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

// same reports whether two objects say the same. Most often they are one.
func same(a, b tenant.Object) bool {
	if a == nil || b == nil || a == b {
		return a == b
	}
	x, err1 := tenant.Marshal(a)
	y, err2 := tenant.Marshal(b)
	return err1 == nil && err2 == nil && string(x) == string(y)
}

// follow takes over what others write to the store, as it comes.
func (p *Plane) follow(revision int64) {
	w := p.cfg.Store.Watch("", revision)
	for {
		b, err := w.Next(p.ended)
		switch {
		case errors.Is(err, store.ErrCompacted):
			b.Revision = p.now.Load().revision // list, and go on from there
			w = p.cfg.Store.Watch("", 0)
		case err != nil:
			return // closed
		}
		p.changing.Lock()
		if err == nil && b.Revision <= p.now.Load().revision {
			p.changing.Unlock()
			continue // our own
		}
		if err := p.refresh(); err != nil && !errors.Is(err, store.ErrClosed) {
			p.journal.record(Event{Verb: EventFailed, Reason: err.Error()})
		}
		p.changing.Unlock()
	}
}

// How long the rack has until it is asked again, at first and at most.
const (
	retryFirst = time.Second
	retryMost  = 30 * time.Second
)

// retry asks the rack again for what it could not do.
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
			p.reconcile(p.World())
			p.changing.Unlock()
		}
	}
}

// errorOf is an error as it is sent, a problem a line.
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

// deniedOf is an error that says that somebody may not.
func deniedOf(err error) *Error {
	e := errorOf(err)
	e.Denied = true
	return e
}

func stack() string { return string(debug.Stack()) }
