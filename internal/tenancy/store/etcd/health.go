package etcd

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"vrdma.dev/vrdma/internal/tenancy/store"
)

func (s *Store) Health() store.Health {
	s.mu.Lock()
	defer s.mu.Unlock()
	return store.Health{State: s.state, Heard: s.copy.Heard(), Why: s.why, Problems: s.problems}
}

func (s *Store) Changed() <-chan struct{} {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.changed
}

// setState says how it stands. Away does not end Strange: only the right store does.
func (s *Store) setState(state store.State, why error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if state == store.Away && s.state == store.Strange {
		return
	}
	old := s.state
	s.state, s.why = state, why
	if old == state {
		return
	}
	close(s.changed)
	s.changed = make(chan struct{})
	switch state {
	case store.InStep:
		s.cfg.Log.Info("the store is in step", "store", s.name())
	case store.Away:
		s.cfg.Log.Warn("the store does not answer: going on with what it last said", "store", s.name(), "error", why)
	case store.Strange:
		s.cfg.Log.Error("the store is not what it was: nothing is taken over from it", "store", s.name(), "error", why)
	}
}

// heard notes an answer.
func (s *Store) heard() { s.copy.Hear(time.Now()) }

// errStrange is why a store is not believed.
type errStrange struct{ text string }

func (e *errStrange) Error() string { return e.text }

func strange(format string, args ...any) error { return &errStrange{fmt.Sprintf(format, args...)} }

// verify asks etcd which store it is. An *errStrange says that it is not the one that the copy is
// of: an etcd that lost its data has the same cluster id as before, and its revisions begin again.
func (s *Store) verify(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, askTime/2)
	defer cancel()
	r, err := s.client.Get(ctx, s.key(store.KeyMeta))
	if err != nil {
		return err
	}
	s.heard()
	var value []byte
	if len(r.Kvs) > 0 {
		value = r.Kvs[0].Value
	}
	if err := s.same(value); err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if seen := max(s.seen, s.copy.Revision()); r.Header.Revision < seen {
		return strange("the store is at revision %d and was at %d: it was restored from a backup, or it is another one. %s", r.Header.Revision, seen, s.advice())
	}
	return nil
}

// same says whether the entry meta is that of the store which the copy is of.
func (s *Store) same(value []byte) error {
	known := s.copy.Get(store.KeyMeta)
	if value == nil {
		if known.Revision != 0 {
			return strange("the store has lost its contents: the entry %s is gone. %s", store.KeyMeta, s.advice())
		}
		return nil
	}
	var was, is store.Meta
	if err := json.Unmarshal(value, &is); err != nil || is.ID == "" {
		return strange("the entry %s of the store does not say which store it is: %.80q", store.KeyMeta, value)
	}
	if is.Schema > store.Schema {
		return strange("the store has schema %d, this version reads %d: use a newer vrdma", is.Schema, store.Schema)
	}
	if known.Revision == 0 || json.Unmarshal(known.Value, &was) != nil || was.ID == "" {
		return nil // it was not known before
	}
	if is.ID != was.ID {
		return strange("the store is another one: it was %.40q and is %.40q. %s", was.ID, is.ID, s.advice())
	}
	return nil
}

func (s *Store) advice() string {
	if s.cfg.Copy == "" {
		return "If that is meant, restart the daemon"
	}
	return fmt.Sprintf("What runs goes on, and vrdma store export still prints what was declared. If the new contents are meant, stop the daemon, delete %s and start it again", s.cfg.Copy)
}

// judge makes an error the state.
func (s *Store) judge(err error) {
	var odd *errStrange
	switch {
	case err == nil, s.ctx.Err() != nil:
	case errors.As(err, &odd):
		s.setState(store.Strange, err)
	default:
		s.setState(store.Away, s.explain(err))
	}
}

// probe asks every few seconds: a watch says nothing when there is nothing to say, and nothing
// when etcd is gone.
func (s *Store) probe() {
	for n := 1; ; n++ {
		// Daemons that were started together do not ask together.
		if !s.sleep(probeEvery/2 + rand.N(probeEvery)) {
			return
		}
		err := s.verify(s.ctx)
		if err != nil {
			err = s.verify(s.ctx) // another member is asked
		}
		if err == nil {
			s.mu.Lock()
			state := s.state
			s.mu.Unlock()
			if state == store.Away && s.watching.Load() {
				s.setState(store.InStep, nil)
			}
			if n%12 == 0 {
				s.copy.Save() // when it was heard of
			}
			continue
		}
		s.judge(err)
		s.restart() // a watch may wait for what never comes
	}
}

// sleep reports whether the time has passed, and the store is still open.
func (s *Store) sleep(d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return true
	case <-s.ctx.Done():
		return false
	}
}

// Alive keeps an entry on a lease. The keep-alive channel of the client ends for good when etcd
// was away for longer than the lease, and the entry goes later even though etcd is back: then there is a
// new lease, and the entry is put again.
func (s *Store) Alive(key string, value []byte, ttl time.Duration) (stop func()) {
	ctx, cancel := context.WithCancel(s.ctx)
	done := make(chan struct{})
	s.work.Go(func() {
		defer close(done)
		for ctx.Err() == nil {
			if err := s.live(ctx, key, value, ttl); err != nil && ctx.Err() == nil {
				s.cfg.Log.Debug("the store does not know that this host is alive", "error", err)
			}
			select {
			case <-time.After(min(ttl/10, time.Second)):
			case <-ctx.Done():
			}
		}
	})
	return func() {
		cancel()
		<-done
	}
}

// live holds one lease until it ends.
func (s *Store) live(ctx context.Context, key string, value []byte, ttl time.Duration) error {
	s.mu.Lock()
	state, why := s.state, s.why
	s.mu.Unlock()
	if state == store.Strange {
		return why // nothing is written to it
	}
	once, cancel := context.WithTimeout(ctx, askTime)
	defer cancel()
	lease, err := s.client.Grant(once, max(1, int64(ttl.Seconds())))
	if err != nil {
		return err
	}
	if _, err := s.client.Put(once, s.key(key), string(value), clientv3.WithLease(lease.ID)); err != nil {
		return err
	}
	beats, err := s.client.KeepAlive(ctx, lease.ID)
	if err != nil {
		return err
	}
	for n := 0; ; n++ {
		select {
		case _, more := <-beats:
			if !more {
				return errors.New("the lease is over")
			}
		case <-ctx.Done():
			return ctx.Err()
		}
		s.heard()
		// Somebody may have deleted it. The first beat comes before the copy has it.
		if n > 0 && s.Health().State == store.InStep && !bytes.Equal(s.copy.Get(key).Value, value) {
			return errors.New("the entry was removed")
		}
	}
}
