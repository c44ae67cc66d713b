package etcd

import (
	"math/rand/v2"
	"strings"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
)

// tidyEvery is how often a sweeper looks for pieces of dead writers.
var tidyEvery = time.Minute

// A sweeper finishes the large commits of dead writers, and deletes the pieces of commits that never became visible.
type sweeper struct {
	etcd    *cluster
	health  *health
	replica *replica
	commits *committer
}

// run sweeps now and then until the store is closed.
func (sw *sweeper) run() {
	for sw.etcd.sleep(tidyEvery/2 + rand.N(tidyEvery)) {
		p := sw.replica.visible()
		if p != nil {
			// help gives the writer some more time.
			if err := sw.commits.help(p.at); err != nil {
				sw.etcd.cfg.Log.Warn("a large commit to the store cannot be finished", "error", err)
			}
		}
		if err := sw.sweep(); err != nil {
			sw.etcd.cfg.Log.Debug("what dead writers left in the store is still there", "error", err)
		}
	}
}

// sweep deletes the pieces of commits that will never become visible: their writer is gone, and they are not the
// commit that is visible now.
func (sw *sweeper) sweep() error {
	if err := sw.health.usable(); err != nil {
		return err
	}
	ctx, cancel := sw.etcd.ask()
	defer cancel()
	prefix := sw.etcd.key(prefixStage)
	commit, err := sw.etcd.client.Get(ctx, sw.etcd.key(keyCommit))
	if err != nil {
		return err
	}
	at := int64(0)
	if len(commit.Kvs) > 0 {
		at = commit.Kvs[0].ModRevision
	}
	for from := prefix; ; {
		// The first piece of each.
		r, err := sw.etcd.client.Get(ctx, from, clientv3.WithRange(clientv3.GetPrefixRangeEnd(prefix)), clientv3.WithLimit(1), clientv3.WithKeysOnly())
		if err != nil || len(r.Kvs) == 0 {
			return err
		}
		id, _, _ := strings.Cut(strings.TrimPrefix(string(r.Kvs[0].Key), prefix), "/")
		from = prefix + id + "0" // after every ID/…
		if at != 0 && strings.Contains(string(commit.Kvs[0].Value), id) {
			continue
		}
		_, err = sw.etcd.client.Txn(ctx).If(
			clientv3.Compare(clientv3.ModRevision(sw.etcd.key(prefixWriter+id)), "=", 0),
			clientv3.Compare(clientv3.ModRevision(sw.etcd.key(keyCommit)), "=", at),
		).Then(clientv3.OpDelete(prefix+id+"/", clientv3.WithPrefix()), clientv3.OpDelete(prefix+id)).Commit()
		if err != nil {
			return err
		}
	}
}
