package etcd

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"time"

	"go.etcd.io/etcd/api/v3/mvccpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"

	"vrdma.dev/vrdma/internal/tenancy/store"
)

// Keys of ours, which are in no list.
const (
	keyCommit    = store.Reserved + "commit"  // a large commit that is visible
	prefixStage  = store.Reserved + "stage/"  // its pieces, and those of others to come
	prefixWriter = store.Reserved + "writer/" // who is making one
	// The keys below endRead are read and watched: all but the pieces and the writers.
	endRead = store.Reserved + "s"
)

// pageSize is how many entries one answer has.
const pageSize = 5000

// mostProblems is how many are remembered.
const mostProblems = 100

// errAgain: the watch has to begin again.
var errAgain = errors.New("the connection to the store was lost")

// follow keeps the copy in step.
func (s *Store) follow() {
	wait := time.Duration(0)
	for s.ctx.Err() == nil {
		began := time.Now()
		err := s.session()
		s.watching.Store(false)
		if s.ctx.Err() != nil {
			return
		}
		// A watch that was opened anew is no outage.
		if !errors.Is(err, errAgain) && !compacted(err) {
			s.judge(err)
		}
		if wait = min(max(2*wait, 20*time.Millisecond), time.Second); time.Since(began) > 5*time.Second {
			wait = 0
		}
		if compacted(err) {
			// All others may have to list as well.
			s.mu.Lock()
			s.seen = 0
			s.mu.Unlock()
			wait = rand.N(relistJitter)
		}
		if !s.sleep(wait) {
			return
		}
	}
}

func compacted(err error) bool { return errors.Is(err, rpctypes.ErrCompacted) }

// watches says how the watch is ended; nil: there is none.
func (s *Store) watches(stop context.CancelFunc) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.stop = stop
}

// restart has the watch begin again. Before the watch every request has its time, and what goes on
// slowly is not to begin anew.
func (s *Store) restart() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.stop != nil {
		s.stop()
	}
}

// session lists if it has to and watches until something is wrong.
//
// The order matters. First the watch is opened, then etcd is asked which store it is, and only
// then changes are taken over, as long as they come from the same stream. So no change of another
// store is.
func (s *Store) session() error {
	ctx, cancel := context.WithCancel(clientv3.WithRequireLeader(s.ctx))
	defer cancel()
	defer s.watches(nil)
	s.mu.Lock()
	fresh := s.seen == 0
	strange := s.state == store.Strange
	s.mu.Unlock()
	if err := s.verify(ctx); err != nil {
		return err
	}
	if fresh || strange {
		if err := s.list(ctx); err != nil {
			return err
		}
	}
	s.mu.Lock()
	from := s.seen + 1
	s.mu.Unlock()
	s.watches(cancel)
	watch := s.client.Watch(ctx, s.cfg.Prefix, clientv3.WithRange(s.key(endRead)), clientv3.WithRev(from), clientv3.WithCreatedNotify())
	stream := int64(-1)
	for r := range watch {
		if err := r.Err(); err != nil {
			return err
		}
		s.heard()
		if r.Created {
			stream = s.streams.Load()
			if err := s.verify(ctx); err != nil {
				if ctx.Err() != nil {
					return errAgain // probe has said why
				}
				return err
			}
			if s.streams.Load() != stream {
				return errAgain
			}
			s.inStep()
			continue
		}
		if s.streams.Load() != stream {
			return errAgain
		}
		if err := s.take(ctx, r.Events); err != nil {
			if ctx.Err() != nil {
				return errAgain
			}
			return err
		}
	}
	return errAgain
}

// inStep says that the copy follows.
func (s *Store) inStep() {
	s.watching.Store(true)
	s.setState(store.InStep, nil)
	select {
	case <-s.first:
	default:
		close(s.first)
	}
}

// list makes the copy what etcd has at one revision.
func (s *Store) list(ctx context.Context) error {
	var entries []store.Entry
	var commit *mvccpb.KeyValue
	revision, from := int64(0), s.cfg.Prefix
	s.mu.Lock()
	s.problems = nil
	s.mu.Unlock()
	for more := true; more; {
		once, cancel := context.WithTimeout(ctx, askTime)
		r, err := s.client.Get(once, from, clientv3.WithRange(s.key(endRead)), clientv3.WithLimit(pageSize), clientv3.WithRev(revision))
		cancel()
		if err != nil {
			return err
		}
		s.heard()
		if revision == 0 {
			revision = r.Header.Revision
		}
		for _, kv := range r.Kvs {
			e, err := s.entry(kv)
			switch {
			case e.Key == keyCommit:
				commit = kv
			case e.Key == store.KeyMeta && s.same(e.Value) != nil:
				return s.same(e.Value)
			case err != nil:
				s.problem(err)
			default:
				entries = append(entries, e)
			}
		}
		if more = r.More && len(r.Kvs) > 0; more {
			from = string(r.Kvs[len(r.Kvs)-1].Key) + "\x00"
		}
	}
	physical := make(map[string]int64, len(entries))
	for _, e := range entries {
		physical[e.Key] = e.Revision
	}
	var p *pending
	if commit != nil {
		var err error
		if p, err = s.open(ctx, commit, revision); err != nil {
			return err
		}
		p.expect(func(key string) int64 { return physical[key] })
		entries = p.over(entries)
	}
	s.replace(entries, physical, revision, p)
	return nil
}

// replace makes the copy what a list says. physical is where etcd has its entries.
func (s *Store) replace(entries []store.Entry, physical map[string]int64, revision int64, p *pending) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.copy.Replace(entries, revision)
	for key, at := range physical {
		if s.copy.Get(key).Revision == at {
			delete(physical, key)
		}
	}
	s.physical, s.seen, s.pending = physical, revision, p
	s.move()
}

// entry is a key of etcd's as an entry; an error for one that cannot be.
func (s *Store) entry(kv *mvccpb.KeyValue) (store.Entry, error) {
	e := store.Entry{Key: strings.TrimPrefix(string(kv.Key), s.cfg.Prefix), Value: kv.Value, Revision: kv.ModRevision}
	if e.Value == nil {
		e.Value = []byte{}
	}
	if err := store.Check(nil, []store.Write{{Key: e.Key, Value: e.Value}}); err != nil {
		return e, fmt.Errorf("%.80q is no entry of the store's: %w", kv.Key, err)
	}
	return e, nil
}

// problem notes what was left out.
func (s *Store) problem(err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.problems) < mostProblems {
		s.problems = append(s.problems, err.Error())
	}
}

// take takes over events, which come in order of their revisions and with all of one revision
// at once.
func (s *Store) take(ctx context.Context, events []*clientv3.Event) error {
	for len(events) > 0 {
		n, revision := 1, events[0].Kv.ModRevision
		for n < len(events) && events[n].Kv.ModRevision == revision {
			n++
		}
		if err := s.step(ctx, revision, events[:n]); err != nil {
			return err
		}
		events = events[n:]
	}
	return nil
}

// step takes over the events of one revision.
func (s *Store) step(ctx context.Context, revision int64, events []*clientv3.Event) error {
	var changes []store.Change
	s.mu.Lock()
	now := s.pending
	s.mu.Unlock()
	physical := make(map[string]int64)
	for _, ev := range events {
		e, err := s.entry(ev.Kv)
		deleted := ev.Type == clientv3.EventTypeDelete
		switch {
		case e.Key == keyCommit && deleted:
			if now != nil && len(now.missing) > 0 {
				// Somebody removed it who did not copy it.
				s.forget()
				return errAgain
			}
			now = nil
		case e.Key == keyCommit:
			if now, err = s.open(ctx, ev.Kv, revision); err != nil {
				return err
			}
			now.expect(s.physicalOf)
			changes = append(changes, now.changes()...)
		case err != nil:
			s.problem(err)
		case e.Key == store.KeyMeta && now.copied(e, deleted):
			physical[e.Key] = revision
		case e.Key == store.KeyMeta && deleted:
			if err := s.same(nil); err != nil {
				return err
			}
		case e.Key == store.KeyMeta && s.same(e.Value) != nil:
			return s.same(e.Value)
		case now.copied(e, deleted) && deleted:
			physical[e.Key] = 0
		case now.copied(e, deleted):
			physical[e.Key] = revision
		case deleted:
			changes = append(changes, store.Change{Key: e.Key, Deleted: true})
		default:
			changes = append(changes, store.Change{Key: e.Key, Value: e.Value})
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, c := range changes {
		delete(s.physical, c.Key)
	}
	for key, at := range physical {
		delete(now.missing, key)
		if s.physical[key] = at; at == 0 {
			delete(s.physical, key)
		}
	}
	s.copy.Advance(revision, changes)
	s.seen, s.pending = revision, now
	s.move()
	return nil
}

// forget has the next session list.
func (s *Store) forget() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.seen = 0
}

// physicalOf is the revision at which etcd has an entry; 0: it does not. Only the goroutine that
// follows changes it.
func (s *Store) physicalOf(key string) int64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.etcdHas(key)
}

// etcdHas is physicalOf with mu held.
func (s *Store) etcdHas(key string) int64 {
	if at, known := s.physical[key]; known {
		return at
	}
	return s.copy.Get(key).Revision
}
