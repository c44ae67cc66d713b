package etcd

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	mathrand "math/rand/v2"
	"sync"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc/connectivity"

	"vrdma.dev/vrdma/internal/tenancy/store"
)

// mostConditions is how many conditions a commit may have.
const mostConditions = mostOps

// mostTries bounds how often a commit is retried because other clients copy pieces meanwhile.
const mostTries = 50

// helpAfter is how long a commit waits for another client's large commit before it copies the pieces itself.
var helpAfter = time.Second

// A committer makes commits: small ones in one transaction, large ones in pieces (see the package comment).
type committer struct {
	etcd    *cluster
	health  *health
	replica *replica

	mu    sync.Mutex // one commit at a time
	turns turns      // guarded by mu
}

// commit makes one commit.
func (co *committer) commit(conditions []store.Condition, writes []store.Write) (revision int64, ok bool, err error) {
	if err := store.Check(conditions, writes); err != nil {
		return 0, false, err
	}
	if len(conditions) > mostConditions {
		return 0, false, fmt.Errorf("a commit has %d conditions, at most %d are possible", len(conditions), mostConditions)
	}
	co.mu.Lock()
	defer co.mu.Unlock()
	co.confirm()
	for range mostTries {
		if err := co.health.usable(); err != nil {
			return 0, false, err
		}
		compare, holds := co.translate(conditions)
		if !holds {
			return co.etcd.copy.Revision(), false, nil
		}
		var again bool
		if small(writes) {
			revision, ok, again, err = co.commitSmall(conditions, compare, writes)
		} else {
			revision, ok, again, err = co.commitLarge(conditions, compare, writes)
		}
		if err != nil {
			return 0, false, co.etcd.away(err)
		}
		if !again {
			return revision, ok, nil
		}
	}
	return 0, false, errors.New("the store: others keep it busy; try again")
}

// confirmAfter is how long an answer of etcd counts, and confirmTime how long a commit waits for another one. A commit that is sent
// to an etcd that has died ends after twice askTime, and nobody knows whether it was made.
const (
	confirmAfter = time.Second
	confirmTime  = 2500 * time.Millisecond
)

// confirm makes sure that etcd answers, before a commit is sent. Otherwise the store is Away then.
func (co *committer) confirm() {
	if co.health.usable() != nil || time.Since(co.etcd.copy.Heard()) < confirmAfter {
		return
	}
	if co.etcd.client.ActiveConnection().GetState() == connectivity.TransientFailure {
		co.health.judge(errors.New("no member accepts a connection"))
		return
	}
	var err error
	for range 2 { // the client asks another member
		ctx, cancel := context.WithTimeout(co.etcd.ctx, confirmTime)
		err = co.replica.verify(ctx)
		cancel()
		if err == nil {
			return
		}
	}
	co.health.judge(err)
}

// translate converts conditions to etcd's. An entry of a large commit was committed at one revision and is in etcd
// at a later one. holds is false if a condition does not hold in the copy.
func (co *committer) translate(conditions []store.Condition) (compare []clientv3.Cmp, holds bool) {
	co.replica.mu.Lock()
	defer co.replica.mu.Unlock()
	compare = []clientv3.Cmp{clientv3.Compare(clientv3.ModRevision(co.etcd.key(keyCommit)), "=", 0)}
	for _, c := range conditions {
		at := c.Revision
		switch have := co.etcd.copy.Get(c.Key).Revision; {
		case have == c.Revision:
			at = co.replica.etcdHas(c.Key)
		case have > c.Revision, have != 0 && c.Revision == 0:
			return nil, false
		}
		compare = append(compare, clientv3.Compare(clientv3.ModRevision(co.etcd.key(c.Key)), "=", at))
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

// questions are the reads of a transaction whose conditions do not hold.
func (co *committer) questions(conditions []store.Condition) []clientv3.Op {
	ops := []clientv3.Op{clientv3.OpGet(co.etcd.key(keyCommit))}
	for _, c := range conditions {
		ops = append(ops, clientv3.OpGet(co.etcd.key(c.Key), clientv3.WithKeysOnly()))
	}
	return ops
}

// commitSmall commits in one transaction. again: the conditions may hold, so the caller tries again.
func (co *committer) commitSmall(conditions []store.Condition, compare []clientv3.Cmp, writes []store.Write) (revision int64, ok, again bool, err error) {
	r, err := co.turns.commit(compare, co.etcd.operations(writes), co.questions(conditions))
	if err != nil {
		return 0, false, false, err
	}
	if !r.Succeeded {
		again, err := co.catchUp(conditions, r.Responses)
		return co.etcd.copy.Revision(), false, again, err
	}
	// If the answer was lost there are no responses, and the revision suffices.
	changed := len(r.Responses) == 0
	for i := range len(writes) {
		if i < len(r.Responses) {
			d := r.Responses[i].GetResponseDeleteRange()
			changed = changed || d == nil || d.Deleted > 0
		}
	}
	if !changed {
		return co.etcd.copy.Revision(), true, false, nil
	}
	co.awaitRevision(r.Header.Revision)
	return r.Header.Revision, true, false, nil
}

// awaitRevision waits until the copy has our own commit. It gives up after askTime if the watch is broken: the
// commit is made, and the copy gets it later.
func (co *committer) awaitRevision(revision int64) {
	ctx, cancel := co.etcd.ask()
	defer cancel()
	co.replica.await(ctx, func() bool { return co.replica.seen >= revision })
}

// catchUp waits until the copy has what made the conditions fail, or until a large commit is folded. It reports whether
// the commit may be tried again.
func (co *committer) catchUp(conditions []store.Condition, answers []*pb.ResponseOp) (again bool, err error) {
	ctx, cancel := co.etcd.ask()
	defer cancel()
	revisionOf := func(i int) int64 {
		if r := answers[i].GetResponseRange(); r != nil && len(r.Kvs) > 0 {
			return r.Kvs[0].ModRevision
		}
		return 0
	}
	if at := revisionOf(0); at != 0 {
		return true, co.help(at)
	}
	there := co.replica.await(ctx, func() bool {
		for i, c := range conditions {
			if co.replica.etcdHas(c.Key) != revisionOf(i+1) && co.etcd.copy.Get(c.Key).Revision <= c.Revision {
				return false
			}
		}
		return true
	})
	for _, c := range conditions {
		if co.etcd.copy.Get(c.Key).Revision != c.Revision {
			return false, nil
		}
	}
	return there, nil // an entry was copied to its key meanwhile
}

// help waits until another client has copied its large commit. After a while it copies the pieces itself, because
// the other client may have died.
func (co *committer) help(at int64) error {
	ctx, cancel := context.WithTimeout(co.etcd.ctx, helpAfter+mathrand.N(helpAfter))
	defer cancel()
	co.replica.await(ctx, func() bool {
		return co.replica.seen >= at && (co.replica.pending == nil || co.replica.pending.at != at || co.replica.pending.broken != nil)
	})
	p := co.replica.visible()
	if p == nil || p.at != at {
		return nil // the copy is behind; try again
	}
	return co.fold(p)
}

// fold copies the pieces of a visible commit to their keys and deletes the commit. Several clients may fold a
// commit at the same time: each step is on the condition that the commit is still there.
func (co *committer) fold(p *pending) error {
	if p.Schema > store.Schema {
		return p.broken
	}
	there := clientv3.Compare(clientv3.ModRevision(co.etcd.key(keyCommit)), "=", p.at)
	for _, piece := range p.pieces {
		ctx, cancel := co.etcd.ask()
		r, err := co.etcd.client.Txn(ctx).If(there).Then(co.etcd.operations(piece)...).Commit()
		cancel()
		if err != nil {
			return err
		}
		if !r.Succeeded {
			return nil // another client has finished it
		}
	}
	ops := []clientv3.Op{clientv3.OpDelete(co.etcd.key(keyCommit))}
	if validID(p.ID) {
		ops = append(ops, clientv3.OpDelete(co.etcd.key(prefixStage+p.ID+"/"), clientv3.WithPrefix()), clientv3.OpDelete(co.etcd.key(prefixWriter+p.ID)))
	}
	ctx, cancel := co.etcd.ask()
	defer cancel()
	_, err := co.etcd.client.Txn(ctx).If(there).Then(ops...).Commit()
	if err != nil {
		return err
	}
	co.replica.await(ctx, func() bool { return co.replica.pending == nil || co.replica.pending.at != p.at })
	return nil
}

// writerTime is how long the pieces of a dead writer are kept.
const writerTime = 60 // seconds

// commitLarge stages writes, and makes them visible with one key.
func (co *committer) commitLarge(conditions []store.Condition, compare []clientv3.Cmp, writes []store.Write) (revision int64, ok, again bool, err error) {
	ctx, cancel := context.WithCancel(co.etcd.ctx)
	defer cancel()
	rec := record{Schema: store.Schema, ID: rand.Text()}
	lease, err := co.etcd.client.Grant(ctx, writerTime)
	if err != nil {
		return 0, false, false, err
	}
	defer func() {
		if !ok {
			co.abandon(rec.ID, lease.ID)
		}
	}()
	if _, err := co.etcd.client.KeepAlive(ctx, lease.ID); err != nil {
		return 0, false, false, err
	}
	pieces := cutPieces(writes)
	rec.Pieces = len(pieces)
	if err := co.stage(rec, pieces, lease.ID); err != nil {
		return 0, false, false, err
	}
	compare = append(compare, clientv3.Compare(clientv3.ModRevision(co.etcd.key(prefixWriter+rec.ID)), ">", 0))
	value, _ := json.Marshal(rec) // two numbers and a string: it cannot fail
	r, err := co.turns.commit(compare, []clientv3.Op{clientv3.OpPut(co.etcd.key(keyCommit), string(value))}, co.questions(conditions))
	if err != nil {
		return 0, false, false, err
	}
	if !r.Succeeded {
		again, err := co.catchUp(conditions, r.Responses)
		return co.etcd.copy.Revision(), false, again, err
	}
	ok = true
	co.awaitRevision(r.Header.Revision)
	p := co.replica.visible()
	if p == nil || p.at != r.Header.Revision {
		// The copy is behind, or another client has folded it already.
		return r.Header.Revision, true, false, nil
	}
	if err := co.fold(p); err != nil {
		co.etcd.cfg.Log.Warn("a large commit is in the store, but not copied to its keys; other hosts copy it", "error", err)
	}
	return min(r.Header.Revision, co.etcd.copy.Revision()), true, false, nil
}

// abandon deletes the pieces of a commit that did not become visible. It first deletes the writer's key, after which
// the commit cannot become visible. A commit that is visible although etcd's answer was lost stays.
func (co *committer) abandon(id string, lease clientv3.LeaseID) {
	ctx, cancel := co.etcd.ask()
	defer cancel()
	if _, err := co.etcd.client.Revoke(ctx, lease); err != nil {
		return // the lease expires, and sweepers delete the pieces
	}
	co.etcd.client.Txn(ctx).If(
		clientv3.Compare(clientv3.ModRevision(co.etcd.key(prefixWriter+id)), "=", 0),
		clientv3.Compare(clientv3.ModRevision(co.etcd.key(keyCommit)), "=", 0),
	).Then(clientv3.OpDelete(co.etcd.key(prefixStage+id+"/"), clientv3.WithPrefix())).Commit()
}

// stage writes the pieces, several in a transaction.
func (co *committer) stage(rec record, pieces [][]store.Write, lease clientv3.LeaseID) error {
	ops := []clientv3.Op{clientv3.OpPut(co.etcd.key(prefixWriter+rec.ID), co.etcd.copy.ID(), clientv3.WithLease(lease))}
	size := 0
	send := func() error {
		ctx, cancel := co.etcd.ask()
		defer cancel()
		_, err := co.etcd.client.Txn(ctx).Then(ops...).Commit()
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
		ops = append(ops, clientv3.OpPut(co.etcd.key(fmt.Sprintf("%s%s/%06d", prefixStage, rec.ID, i)), string(value)))
		size += len(value)
	}
	return send()
}
