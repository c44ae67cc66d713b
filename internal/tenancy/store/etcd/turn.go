package etcd

import (
	"context"
	"crypto/rand"
	"fmt"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
)

// prefixTurn is the prefix of one key for each client. Every commit writes its client's key, on the condition that
// the key has not changed since the commit before. When the answer to a commit is lost, the key tells whether the
// commit was made. If it was not, writing the key prevents that it is made later.
const prefixTurn = "~turn/"

// turns is the key of this client's last commit. committer.mu guards it.
type turns struct {
	etcd     *cluster
	revision int64 // of the key; 0: not known
}

func (t *turns) key() string { return t.etcd.key(prefixTurn + t.etcd.copy.ID()) }

// take writes the key if its revision is not known. Afterwards no commit is made that was sent before.
func (t *turns) take() error {
	if t.revision != 0 {
		return nil
	}
	ctx, cancel := t.etcd.ask()
	defer cancel()
	r, err := t.etcd.client.Put(ctx, t.key(), rand.Text())
	if err == nil {
		t.revision = r.Header.Revision
	}
	return err
}

// commit runs the transaction of a commit. Succeeded is false if the conditions do not hold. An error says that
// nothing was changed, or that this is not known.
func (t *turns) commit(compare []clientv3.Cmp, writes, questions []clientv3.Op) (r *clientv3.TxnResponse, err error) {
	if err := t.take(); err != nil {
		return nil, fmt.Errorf("%w; nothing was changed", err)
	}
	mark := rand.Text()
	compare = append(compare, clientv3.Compare(clientv3.ModRevision(t.key()), "=", t.revision))
	writes = append(writes, clientv3.OpPut(t.key(), mark))
	questions = append(questions, clientv3.OpGet(t.key(), clientv3.WithKeysOnly()))
	ctx, cancel := t.etcd.ask()
	defer cancel()
	r, err = t.etcd.client.Txn(ctx).If(compare...).Then(writes...).Else(questions...).Commit()
	if err != nil {
		return t.recall(mark, err)
	}
	t.etcd.heard()
	if r.Succeeded {
		t.revision = r.Header.Revision
		return r, nil
	}
	last := r.Responses[len(r.Responses)-1].GetResponseRange()
	if len(last.Kvs) == 0 || last.Kvs[0].ModRevision != t.revision {
		t.revision = 0 // another client deleted the key, or runs with a copy of our copy
	}
	return r, nil
}

// recall finds out whether a commit was made whose answer was lost, and otherwise prevents it.
func (t *turns) recall(mark string, lost error) (*clientv3.TxnResponse, error) {
	t.revision = 0
	for end := time.Now().Add(askTime); t.etcd.ctx.Err() == nil && time.Now().Before(end); {
		ctx, cancel := context.WithTimeout(t.etcd.ctx, askTime/2)
		r, err := t.etcd.client.Txn(ctx).If(clientv3.Compare(clientv3.Value(t.key()), "=", mark)).
			Then(clientv3.OpGet(t.key())).Else(clientv3.OpPut(t.key(), rand.Text())).Commit()
		cancel()
		if err != nil {
			t.etcd.sleep(50 * time.Millisecond)
			continue
		}
		t.etcd.heard()
		if !r.Succeeded {
			t.revision = r.Header.Revision
			return nil, fmt.Errorf("%w; nothing was changed", lost)
		}
		t.revision = r.Responses[0].GetResponseRange().Kvs[0].ModRevision
		made := &clientv3.TxnResponse{Succeeded: true}
		made.Header = r.Header
		made.Header.Revision = t.revision
		return made, nil
	}
	return nil, fmt.Errorf("%w; whether the change was made is not known", lost)
}

// end deletes the key, unless the next process uses it again.
func (t *turns) end() {
	if t.etcd.cfg.Copy != "" || t.revision == 0 {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	t.etcd.client.Delete(ctx, t.key())
}
