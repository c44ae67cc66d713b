package control

import (
	"errors"
	"maps"
	"strings"
	"sync"
	"sync/atomic"

	"vrdma.dev/vrdma/internal/tenancy/store"
	"vrdma.dev/vrdma/internal/tenancy/tenant"
)

// A snapshot is the state of the store at one revision. It is replaced, not changed.
type snapshot struct {
	world      *tenant.World
	revision   int64 // it has everything up to this revision, and what we wrote after it
	generation int64 // the revision of the key generation; 0: there is none
	named      bool  // the store has an entry meta
	meta       store.Meta
	problems   []string // entries that were left out, and why
	// newer are the keys that a newer vrdma has written. Their contents are unknown here, and must not be overwritten.
	newer map[string]bool

	hosts      map[string]*registered   // hosts that run vrdma, by name
	live       map[string]string        // the daemon of a host that lives
	placements map[tenant.Key]placement // by the NIC's key
}

// snapshots has the newest snapshot, and commits to the store.
type snapshots struct {
	cfg   *Config
	now   atomic.Pointer[snapshot]
	mu    sync.Mutex    // held while now is replaced
	moved chan struct{} // guarded by mu: closed and replaced with now
}

// load reads the store. Entries that do not fit a world are problems. Only a store that cannot be read, or has a newer
// schema as a whole, is an error. An entry that cannot be read keeps its object of old.
func load(s store.Store, old *tenant.World) (*snapshot, error) {
	entries, revision, err := s.List("")
	if err != nil {
		return nil, err
	}
	snap := &snapshot{revision: revision, hosts: make(map[string]*registered), live: make(map[string]string), placements: make(map[tenant.Key]placement)}
	if snap.meta, snap.named, err = store.Identify(s); err != nil {
		return nil, err
	}
	before := make(map[string]tenant.Object)
	for _, o := range old.Objects("") {
		before[keyOf(o)] = o
	}
	var objects []tenant.Object
	for _, e := range entries {
		switch {
		case e.Key == keyGeneration:
			snap.generation = e.Revision
		case strings.HasPrefix(e.Key, prefixSpec):
			o, err := decode(e)
			if err != nil {
				snap.problems = append(snap.problems, err.Error())
				if errors.Is(err, errNewer) && isObject(e) {
					if snap.newer == nil {
						snap.newer = make(map[string]bool)
					}
					snap.newer[e.Key] = true
				}
				if o = before[e.Key]; o == nil {
					continue
				}
			}
			objects = append(objects, o)
		default:
			if err := snap.note(e, false); err != nil {
				snap.problems = append(snap.problems, err.Error())
			}
		}
	}
	snap.world, err = tenant.NewWorld(objects)
	var list tenant.Errors
	switch {
	case errors.As(err, &list):
		for _, e := range list {
			snap.problems = append(snap.problems, "store: "+e.Error())
		}
	case err != nil:
		snap.problems = append(snap.problems, "store: "+err.Error())
	}
	if snap.world == nil {
		snap.world = &tenant.World{}
	}
	return snap, nil
}

// note applies an entry about hosts or placements. It ignores others, and entries that are older than what we wrote
// ourselves. The caller has cloned the maps.
func (s *snapshot) note(e store.Entry, deleted bool) error {
	switch {
	case strings.HasPrefix(e.Key, prefixHost):
		name := strings.TrimPrefix(e.Key, prefixHost)
		if h := s.hosts[name]; h != nil && h.revision > e.Revision {
			return nil
		}
		delete(s.hosts, name)
		if deleted {
			return nil
		}
		h, err := decodeHost(e)
		if err != nil {
			return err
		}
		s.hosts[name] = h
	case strings.HasPrefix(e.Key, prefixLive):
		name := strings.TrimPrefix(e.Key, prefixLive)
		if delete(s.live, name); !deleted {
			s.live[name] = string(e.Value)
		}
	case strings.HasPrefix(e.Key, prefixPlace):
		k, ok := nicAt(e.Key)
		if !ok || s.placements[k].revision > e.Revision {
			return nil
		}
		delete(s.placements, k)
		if deleted {
			return nil
		}
		p, err := decodePlacement(e)
		if err != nil {
			return err
		}
		s.placements[k] = p
	}
	return nil
}

// A delta is a decoded batch of the store.
type delta struct {
	put    []tenant.Object
	gone   []tenant.Key
	others []store.Change // of hosts and placements
	// anew: the batch cannot be applied by itself; the whole store has to be read.
	anew       bool
	generation bool
}

// read decodes a batch.
func read(b *store.Batch) (d delta) {
	for _, c := range b.Changes {
		switch {
		case c.Key == keyGeneration:
			d.generation = true
		case c.Key == store.KeyMeta:
			d.anew = true
		case strings.HasPrefix(c.Key, prefixSpec) && c.Deleted:
			if k, ok := objectAt(c.Key); ok {
				d.gone = append(d.gone, k)
			}
		case strings.HasPrefix(c.Key, prefixSpec):
			o, err := decode(store.Entry{Key: c.Key, Value: c.Value, Revision: b.Revision})
			if err != nil {
				d.anew = true
				continue
			}
			d.put = append(d.put, o)
		case strings.HasPrefix(c.Key, prefixHost), strings.HasPrefix(c.Key, prefixLive), strings.HasPrefix(c.Key, prefixPlace):
			d.others = append(d.others, c)
		}
	}
	return d
}

// declares reports whether it changes declared objects.
func (d *delta) declares() bool { return d.anew || len(d.put)+len(d.gone) > 0 }

// take applies a delta, except to the world.
func (s *snapshot) take(d *delta, revision int64) (problems []string) {
	s.revision = max(s.revision, revision)
	if d.generation {
		s.generation = max(s.generation, revision)
	}
	return s.noteAll(d.others, revision)
}

// noteAll applies what a commit changed of hosts and placements.
func (s *snapshot) noteAll(changes []store.Change, revision int64) (problems []string) {
	if len(changes) == 0 {
		return nil
	}
	s.hosts, s.live, s.placements = maps.Clone(s.hosts), maps.Clone(s.live), maps.Clone(s.placements)
	for _, c := range changes {
		if err := s.note(store.Entry{Key: c.Key, Value: c.Value, Revision: revision}, c.Deleted); err != nil {
			problems = append(problems, err.Error())
		}
	}
	return problems
}

// keep takes from an older snapshot what this host has written since the store was read.
func (s *snapshot) keep(old *snapshot) {
	for name, h := range old.hosts {
		if h.revision > s.revision {
			s.hosts[name] = h
		}
	}
	for k, at := range old.placements {
		if at.revision > s.revision {
			s.placements[k] = at
		}
	}
}

// setPlacement sets the placement of a NIC.
func (s *snapshot) setPlacement(k tenant.Key, at placement) {
	s.placements = maps.Clone(s.placements)
	s.placements[k] = at
}

// where is the host that has a NIC; "": none has. self is this host, which has every NIC if the store is its own.
func (s *snapshot) where(n *tenant.NIC, self string, shared bool) string {
	switch {
	case n.Spec.Host != "":
		return n.Spec.Host
	case !shared:
		return self
	}
	return s.placements[n.Key()].Host
}

// amend replaces the snapshot by a copy that f has changed.
func (v *snapshots) amend(f func(*snapshot)) *snapshot {
	v.mu.Lock()
	defer v.mu.Unlock()
	next := &snapshot{}
	if old := v.now.Load(); old != nil {
		*next = *old
	}
	f(next)
	v.now.Store(next)
	close(v.moved)
	v.moved = make(chan struct{})
	return next
}

// current returns the snapshot, and a channel that is closed when it is replaced.
func (v *snapshots) current() (*snapshot, <-chan struct{}) {
	v.mu.Lock()
	defer v.mu.Unlock()
	return v.now.Load(), v.moved
}

// write commits to the store and amends the snapshot. The first commit gives the store its name.
func (v *snapshots) write(old *snapshot, conditions []store.Condition, writes []store.Write, amend func(s *snapshot, revision int64)) error {
	meta := old.meta
	if !old.named {
		made, condition, write := store.Name()
		meta, conditions, writes = made, append(conditions, condition), append(writes, write)
	}
	revision, ok, err := v.cfg.Store.Commit(conditions, writes)
	switch {
	case err != nil:
		return err
	case !ok:
		return errConflict
	}
	v.amend(func(s *snapshot) {
		s.meta, s.named = meta, true
		if s.wrote(revision) {
			amend(s, revision)
		}
	})
	return nil
}

// wrote records a revision of our own. If it follows the snapshot's, no other daemon wrote in between. It reports
// whether the snapshot lacks what we wrote: follow may have been faster, and may have applied later changes.
func (s *snapshot) wrote(revision int64) (missing bool) {
	if revision == s.revision+1 {
		s.revision = revision
		return true
	}
	return revision > s.revision
}

// erase removes placements and hosts that were deleted at a revision.
func (s *snapshot) erase(writes []store.Write, revision int64) {
	var gone []store.Change
	for _, w := range writes {
		if w.Delete && (strings.HasPrefix(w.Key, prefixPlace) || strings.HasPrefix(w.Key, prefixHost)) {
			gone = append(gone, store.Change{Key: w.Key, Deleted: true})
		}
	}
	s.noteAll(gone, revision)
}
