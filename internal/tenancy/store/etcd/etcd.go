package etcd

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"vrdma.dev/vrdma/internal/tenancy/store"
)

// Times. Tests shorten most of them.
var (
	// askTime bounds a request. The election of a member takes about a second.
	askTime = 5 * time.Second
	// probeEvery is the period of the probe.
	probeEvery = 5 * time.Second
	// firstTime is how long Open waits for etcd, if there is a copy to start from; else freshTime, with a log line
	// every firstTime.
	firstTime = 3 * time.Second
	freshTime = 30 * time.Second
	// relistJitter spreads the lists of many daemons after an outage.
	relistJitter = 2 * time.Second
)

// Store is a store in etcd. The package comment has the layout.
//
// Lock order: committer.mu, replica.mu, then health.mu, cluster.mu, leases.mu and the lock of the copy, which are leaves.
type Store struct {
	etcd    *cluster
	health  *health
	replica *replica
	commits *committer
	sweeper *sweeper
	work    sync.WaitGroup // of the goroutines
	closed  atomic.Bool
	leases  leases
}

var _ store.Remote = (*Store)(nil)

// Open connects to etcd. If etcd does not answer, Open fails, unless a copy of the store exists. Then
// the store starts with the copy and follows etcd as soon as it answers.
func Open(cfg Config) (*Store, error) {
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.DiscardHandler)
	}
	if cfg.Prefix == "" {
		cfg.Prefix = DefaultPrefix
	}
	if !strings.HasSuffix(cfg.Prefix, "/") {
		return nil, fmt.Errorf("the store's prefix %q does not end with /", cfg.Prefix)
	}
	e, err := dial(cfg)
	if err != nil {
		return nil, err
	}
	s := newStore(e)
	s.work.Go(s.replica.follow)
	s.work.Go(s.replica.probe)
	s.work.Go(s.sweeper.run)
	if err := s.begin(); err != nil {
		s.Close()
		return nil, err
	}
	return s, nil
}

// newStore connects the parts of a store.
func newStore(e *cluster) *Store {
	h := newHealth(e)
	r := newReplica(e, h)
	co := &committer{etcd: e, health: h, replica: r, turns: turns{etcd: e}}
	return &Store{
		etcd: e, health: h, replica: r, commits: co, sweeper: &sweeper{etcd: e, health: h, replica: r, commits: co},
		leases: leases{of: maps.Clone(e.cfg.Leases)},
	}
}

// begin waits until the copy is in step with etcd, or etcd turns out to be another store.
func (s *Store) begin() error {
	wait, have := cmp.Or(s.etcd.cfg.fresh, freshTime), s.etcd.copy.Revision() > 0
	if have {
		wait = firstTime
	}
	over := time.After(wait)
	say := time.NewTicker(firstTime)
	defer say.Stop()
	for {
		changed := s.health.next()
		if h := s.health.now(); h.State == store.Strange {
			if have {
				return nil
			}
			return h.Why
		}
		select {
		case <-s.replica.first:
			return nil
		case <-changed:
		case <-say.C:
			if !have {
				s.etcd.cfg.Log.Warn("waiting for the store: there is no copy of it to start from", "store", s.etcd.name(), "for", wait, "error", s.health.now().Why)
			}
		case <-over:
			h := s.health.now()
			if !have {
				return fmt.Errorf("the store %s does not answer, and this daemon has no copy of it yet to start from: %w; check that etcd runs there, and check --store and --store-config", s.etcd.name(), h.Why)
			}
			s.etcd.cfg.Log.Warn("the store does not answer: starting with what it last said", "store", s.etcd.name(), "heard", h.Heard, "error", h.Why)
			return nil
		}
	}
}

// List implements store.Store.
func (s *Store) List(prefix string) ([]store.Entry, int64, error) { return s.etcd.copy.List(prefix) }

// Watch implements store.Store.
func (s *Store) Watch(prefix string, revision int64) store.Watcher {
	return s.etcd.copy.Watch(prefix, revision)
}

// Commit implements store.Store.
func (s *Store) Commit(conditions []store.Condition, writes []store.Write) (revision int64, ok bool, err error) {
	return s.commits.commit(conditions, writes)
}

// Health implements store.Remote.
func (s *Store) Health() store.Health { return s.health.now() }

// Changed implements store.Remote.
func (s *Store) Changed() <-chan struct{} { return s.health.next() }

// Alive implements store.Remote.
func (s *Store) Alive(key string, value []byte, ttl time.Duration) (stop func()) {
	ctx, cancel := context.WithCancel(s.etcd.ctx)
	done := make(chan struct{})
	h := heartbeat{etcd: s.etcd, health: s.health, key: key, value: value, ttl: ttl, leases: &s.leases}
	s.work.Go(func() {
		defer close(done)
		h.run(ctx)
	})
	return func() {
		cancel()
		<-done
	}
}

// Leases returns the leases of the entries that Alive keeps, for the next daemon.
func (s *Store) Leases() map[string]int64 { return s.leases.all() }

// Release gives the file of the copy to the next daemon. Everything else continues: the next daemon commits nothing,
// and keeps no entry alive, before this one has ended.
func (s *Store) Release() error { return s.etcd.copy.Release() }

// Reclaim undoes Release.
func (s *Store) Reclaim() error { return s.etcd.copy.Reclaim() }

// Close closes the connection and ends the watchers. Entries of Alive remain until their lease expires.
func (s *Store) Close() error {
	if s.closed.Swap(true) {
		return nil
	}
	s.etcd.cancel()
	err := s.etcd.copy.Close() // watchers end
	s.work.Wait()
	s.commits.mu.Lock() // a commit that runs has ended with the context
	s.commits.turns.end()
	s.commits.mu.Unlock()
	if e := s.etcd.client.Close(); e != nil && !errors.Is(e, context.Canceled) {
		err = errors.Join(err, e)
	}
	return err
}
