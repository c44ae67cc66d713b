package etcd

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	mathrand "math/rand/v2"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	clientv3 "go.etcd.io/etcd/client/v3"

	"vrdma.dev/vrdma/internal/tenancy/store"
)

// mostConditions is how many conditions a commit may have.
const mostConditions = mostOps

// mostTries bounds how often a commit is tried because of what others copy meanwhile.
const mostTries = 50

// helpAfter is how long another's large commit has until we copy its pieces.
var helpAfter = time.Second

func (s *Store) Commit(conditions []store.Condition, writes []store.Write) (revision int64, ok bool, err error) {
	if err := store.Check(conditions, writes); err != nil {
		return 0, false, err
	}
	if len(conditions) > mostConditions {
		return 0, false, fmt.Errorf("a commit has %d conditions, at most %d are possible", len(conditions), mostConditions)
	}
	s.committing.Lock()
	defer s.committing.Unlock()
	for range mostTries {
		if err := s.usable(); err != nil {
			return 0, false, err
		}
		compare, holds := s.translate(conditions)
		if !holds {
			return s.copy.Revision(), false, nil
		}
		var again bool
		if small(writes) {
			revision, ok, again, err = s.commitSmall(conditions, compare, writes)
		} else {
			revision, ok, again, err = s.commitLarge(conditions, compare, writes)
		}
		if err != nil {
			return 0, false, s.away(err)
		}
		if !again {
			return revision, ok, nil
		}
	}
	return 0, false, errors.New("the store: others keep it busy; try again")
}

// usable says why nothing can be committed.
func (s *Store) usable() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case s.closed:
		return store.ErrClosed
	case s.state == store.Strange:
		return fmt.Errorf("nothing is changed: %w", s.why)
	case s.state == store.Away:
		return fmt.Errorf("the store %s does not answer (%w), last heard of %s; nothing was changed", s.name(), s.why, s.copy.Heard().Format(time.RFC3339))
	}
	return nil
}

// away is an error of a request as people read it.
func (s *Store) away(err error) error {
	if s.ctx.Err() != nil {
		return store.ErrClosed
	}
	return fmt.Errorf("the store %s: %w; last heard of %s", s.name(), err, s.copy.Heard().Format(time.RFC3339))
}

// translate makes conditions etcd's. An entry of a large commit was written at one revision, and
// is in etcd at another. holds is false if the copy already says that one does not.
func (s *Store) translate(conditions []store.Condition) (compare []clientv3.Cmp, holds bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	compare = []clientv3.Cmp{clientv3.Compare(clientv3.ModRevision(s.key(keyCommit)), "=", 0)}
	for _, c := range conditions {
		at := c.Revision
		switch have := s.copy.Get(c.Key).Revision; {
		case have == c.Revision:
			at = s.etcdHas(c.Key)
		case have > c.Revision, have != 0 && c.Revision == 0:
			return nil, false
		}
		compare = append(compare, clientv3.Compare(clientv3.ModRevision(s.key(c.Key)), "=", at))
	}
	return compare, true
}

// small reports whether writes fit into one transaction.
func small(writes []store.Write) bool {
	size := 0
	for i := range writes {
		size += len(writes[i].Key) + len(writes[i].Value) + 32
	}
	return len(writes) <= mostOps && size <= mostBytes+2*store.MaxKey
}

func (s *Store) operations(writes []store.Write) (ops []clientv3.Op) {
	for _, w := range writes {
		if w.Delete {
			ops = append(ops, clientv3.OpDelete(s.key(w.Key)))
		} else {
			ops = append(ops, clientv3.OpPut(s.key(w.Key), string(w.Value)))
		}
	}
	return ops
}

// questions are what a transaction asks for when its conditions do not hold.
func (s *Store) questions(conditions []store.Condition) []clientv3.Op {
	ops := []clientv3.Op{clientv3.OpGet(s.key(keyCommit))}
	for _, c := range conditions {
		ops = append(ops, clientv3.OpGet(s.key(c.Key), clientv3.WithKeysOnly()))
	}
	return ops
}

// commitSmall commits in one transaction. again: the conditions may hold nevertheless.
func (s *Store) commitSmall(conditions []store.Condition, compare []clientv3.Cmp, writes []store.Write) (revision int64, ok, again bool, err error) {
	r, err := s.commitTurn(compare, s.operations(writes), s.questions(conditions))
	if err != nil {
		return 0, false, false, err
	}
	if !r.Succeeded {
		again, err := s.catchUp(conditions, r.Responses)
		return s.copy.Revision(), false, again, err
	}
	// If the answer was lost there are no responses, and the revision will do.
	changed := len(r.Responses) == 0
	for i := range len(writes) {
		if i < len(r.Responses) {
			d := r.Responses[i].GetResponseDeleteRange()
			changed = changed || d == nil || d.Deleted > 0
		}
	}
	if !changed {
		return s.copy.Revision(), true, false, nil
	}
	s.awaitRevision(r.Header.Revision)
	return r.Header.Revision, true, false, nil
}

// awaitRevision waits for our own commit. If the watch is broken that may take long: the commit
// is made, and the copy has it later.
func (s *Store) awaitRevision(revision int64) {
	ctx, cancel := s.ask()
	defer cancel()
	s.await(ctx, func() bool { return s.seen >= revision })
}

// catchUp waits until the copy has what made the conditions fail, or until a large commit is
// out of the way. It reports whether the commit may be tried again.
func (s *Store) catchUp(conditions []store.Condition, answers []*pb.ResponseOp) (again bool, err error) {
	ctx, cancel := s.ask()
	defer cancel()
	revisionOf := func(i int) int64 {
		if r := answers[i].GetResponseRange(); r != nil && len(r.Kvs) > 0 {
			return r.Kvs[0].ModRevision
		}
		return 0
	}
	if at := revisionOf(0); at != 0 {
		return true, s.help(at)
	}
	there := s.await(ctx, func() bool {
		for i, c := range conditions {
			if s.etcdHas(c.Key) != revisionOf(i+1) && s.copy.Get(c.Key).Revision <= c.Revision {
				return false
			}
		}
		return true
	})
	for _, c := range conditions {
		if s.copy.Get(c.Key).Revision != c.Revision {
			return false, nil
		}
	}
	return there, nil // an entry was copied to its key meanwhile
}

// help waits for another's large commit to be copied, and does it if that takes too long: the
// other may be dead.
func (s *Store) help(at int64) error {
	ctx, cancel := context.WithTimeout(s.ctx, helpAfter+mathrand.N(helpAfter))
	defer cancel()
	s.await(ctx, func() bool {
		return s.seen >= at && (s.pending == nil || s.pending.at != at || s.pending.broken != nil)
	})
	s.mu.Lock()
	p := s.pending
	s.mu.Unlock()
	if p == nil || p.at != at {
		return nil // the copy is behind; try again
	}
	return s.fold(p)
}

// fold copies the pieces of a visible commit to their keys, and removes it. Anybody may, several
// may at a time, and each step is on the condition that it is still there.
func (s *Store) fold(p *pending) error {
	if p.Schema > store.Schema {
		return p.broken
	}
	there := clientv3.Compare(clientv3.ModRevision(s.key(keyCommit)), "=", p.at)
	for _, piece := range p.pieces {
		ctx, cancel := s.ask()
		r, err := s.client.Txn(ctx).If(there).Then(s.operations(piece)...).Commit()
		cancel()
		if err != nil {
			return err
		}
		if !r.Succeeded {
			return nil // somebody else has finished it
		}
	}
	ops := []clientv3.Op{clientv3.OpDelete(s.key(keyCommit))}
	if validID(p.ID) {
		ops = append(ops, clientv3.OpDelete(s.key(prefixStage+p.ID+"/"), clientv3.WithPrefix()), clientv3.OpDelete(s.key(prefixWriter+p.ID)))
	}
	ctx, cancel := s.ask()
	defer cancel()
	_, err := s.client.Txn(ctx).If(there).Then(ops...).Commit()
	if err != nil {
		return err
	}
	s.await(ctx, func() bool { return s.pending == nil || s.pending.at != p.at })
	return nil
}

// writerTime is how long the pieces of a writer that died are kept.
const writerTime = 60 // seconds

// commitLarge stages writes, and makes them visible with one key.
func (s *Store) commitLarge(conditions []store.Condition, compare []clientv3.Cmp, writes []store.Write) (revision int64, ok, again bool, err error) {
	ctx, cancel := context.WithCancel(s.ctx)
	defer cancel()
	rec := record{Schema: store.Schema, ID: rand.Text()}
	lease, err := s.client.Grant(ctx, writerTime)
	if err != nil {
		return 0, false, false, err
	}
	defer func() {
		if !ok {
			s.abandon(rec.ID, lease.ID)
		}
	}()
	if _, err := s.client.KeepAlive(ctx, lease.ID); err != nil {
		return 0, false, false, err
	}
	pieces := cutPieces(writes)
	rec.Pieces = len(pieces)
	if err := s.stage(rec, pieces, lease.ID); err != nil {
		return 0, false, false, err
	}
	compare = append(compare, clientv3.Compare(clientv3.ModRevision(s.key(prefixWriter+rec.ID)), ">", 0))
	value, _ := json.Marshal(rec) // two numbers and a string: it cannot fail
	r, err := s.commitTurn(compare, []clientv3.Op{clientv3.OpPut(s.key(keyCommit), string(value))}, s.questions(conditions))
	if err != nil {
		return 0, false, false, err
	}
	if !r.Succeeded {
		again, err := s.catchUp(conditions, r.Responses)
		return s.copy.Revision(), false, again, err
	}
	ok = true
	s.awaitRevision(r.Header.Revision)
	s.mu.Lock()
	p := s.pending
	s.mu.Unlock()
	if p == nil || p.at != r.Header.Revision {
		// The copy is behind, or another was faster to fold it.
		return r.Header.Revision, true, false, nil
	}
	if err := s.fold(p); err != nil {
		s.cfg.Log.Warn("a large commit is made, and others have to copy it to its keys", "error", err)
	}
	return min(r.Header.Revision, s.copy.Revision()), true, false, nil
}

// abandon removes the pieces of a commit that did not become visible. Its writer goes first: after
// that it never can. If it is visible nevertheless, since an answer of etcd's was lost, it stays.
func (s *Store) abandon(id string, lease clientv3.LeaseID) {
	ctx, cancel := s.ask()
	defer cancel()
	if _, err := s.client.Revoke(ctx, lease); err != nil {
		return // it ends by itself, and others tidy up
	}
	s.client.Txn(ctx).If(
		clientv3.Compare(clientv3.ModRevision(s.key(prefixWriter+id)), "=", 0),
		clientv3.Compare(clientv3.ModRevision(s.key(keyCommit)), "=", 0),
	).Then(clientv3.OpDelete(s.key(prefixStage+id+"/"), clientv3.WithPrefix())).Commit()
}

// stage writes the pieces, several in a transaction.
func (s *Store) stage(rec record, pieces [][]store.Write, lease clientv3.LeaseID) error {
	ops := []clientv3.Op{clientv3.OpPut(s.key(prefixWriter+rec.ID), s.copy.ID(), clientv3.WithLease(lease))}
	size := 0
	send := func() error {
		ctx, cancel := s.ask()
		defer cancel()
		_, err := s.client.Txn(ctx).Then(ops...).Commit()
		ops, size = nil, 0
		return err
	}
	for i, piece := range pieces {
		value := appendWrites(nil, piece)
		if size > 0 && size+len(value) > mostBytes || len(ops) == mostOps {
			if err := send(); err != nil {
				return err
			}
		}
		ops = append(ops, clientv3.OpPut(s.key(fmt.Sprintf("%s%s/%06d", prefixStage, rec.ID, i)), string(value)))
		size += len(value)
	}
	return send()
}
