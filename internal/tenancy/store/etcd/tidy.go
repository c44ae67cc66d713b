package etcd

import (
	"math/rand/v2"
	"strings"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
)

// tidyEvery is how often pieces that were left behind are looked for.
var tidyEvery = time.Minute

func (s *Store) tidyOften() {
	for s.sleep(tidyEvery/2 + rand.N(tidyEvery)) {
		s.mu.Lock()
		p := s.pending
		s.mu.Unlock()
		if p != nil {
			// Its writer had time enough, if it is still there a while later.
			if err := s.help(p.at); err != nil {
				s.cfg.Log.Warn("a large commit to the store cannot be finished", "error", err)
			}
		}
		if err := s.tidy(); err != nil {
			s.cfg.Log.Debug("what dead writers left in the store is still there", "error", err)
		}
	}
}

// tidy deletes the pieces of commits that will never be visible: their writer is gone, and they
// are not the one that is visible now.
func (s *Store) tidy() error {
	if err := s.usable(); err != nil {
		return err
	}
	ctx, cancel := s.ask()
	defer cancel()
	prefix := s.key(prefixStage)
	commit, err := s.client.Get(ctx, s.key(keyCommit))
	if err != nil {
		return err
	}
	at := int64(0)
	if len(commit.Kvs) > 0 {
		at = commit.Kvs[0].ModRevision
	}
	for from := prefix; ; {
		// The first piece of each.
		r, err := s.client.Get(ctx, from, clientv3.WithRange(clientv3.GetPrefixRangeEnd(prefix)), clientv3.WithLimit(1), clientv3.WithKeysOnly())
		if err != nil || len(r.Kvs) == 0 {
			return err
		}
		id, _, _ := strings.Cut(strings.TrimPrefix(string(r.Kvs[0].Key), prefix), "/")
		from = prefix + id + "0" // after every ID/…
		if at != 0 && strings.Contains(string(commit.Kvs[0].Value), id) {
			continue
		}
		_, err = s.client.Txn(ctx).If(
			clientv3.Compare(clientv3.ModRevision(s.key(prefixWriter+id)), "=", 0),
			clientv3.Compare(clientv3.ModRevision(s.key(keyCommit)), "=", at),
		).Then(clientv3.OpDelete(prefix+id+"/", clientv3.WithPrefix()), clientv3.OpDelete(prefix+id)).Commit()
		if err != nil {
			return err
		}
	}
}
