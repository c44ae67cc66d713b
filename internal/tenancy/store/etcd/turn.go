package etcd

import (
	"context"
	"crypto/rand"
	"fmt"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
)

// prefixTurn is for one key a client: every commit writes it, on the condition that nobody has since
// the commit before. When the answer to a commit is lost the key says whether it was made, and
// by writing it we see to it that it never will be.
const prefixTurn = "~turn/"

func (s *Store) keyTurn() string { return s.key(prefixTurn + s.copy.ID()) }

// takeTurn begins the row of turns: from now on no commit is made that was sent before. committing
// is held.
func (s *Store) takeTurn() error {
	if s.turn != 0 {
		return nil
	}
	ctx, cancel := s.ask()
	defer cancel()
	r, err := s.client.Put(ctx, s.keyTurn(), rand.Text())
	if err == nil {
		s.turn = r.Header.Revision
	}
	return err
}

// commitTurn runs the transaction of a commit: all or nothing, and we know which. made is
// false if the conditions do not hold; an error says that nothing was changed, or that it cannot
// be known. committing is held.
func (s *Store) commitTurn(compare []clientv3.Cmp, writes, questions []clientv3.Op) (r *clientv3.TxnResponse, err error) {
	if err := s.takeTurn(); err != nil {
		return nil, fmt.Errorf("%w; nothing was changed", err)
	}
	mark := rand.Text()
	compare = append(compare, clientv3.Compare(clientv3.ModRevision(s.keyTurn()), "=", s.turn))
	writes = append(writes, clientv3.OpPut(s.keyTurn(), mark))
	questions = append(questions, clientv3.OpGet(s.keyTurn(), clientv3.WithKeysOnly()))
	ctx, cancel := s.ask()
	defer cancel()
	r, err = s.client.Txn(ctx).If(compare...).Then(writes...).Else(questions...).Commit()
	if err != nil {
		return s.recall(mark, err)
	}
	s.heard()
	if r.Succeeded {
		s.turn = r.Header.Revision
		return r, nil
	}
	last := r.Responses[len(r.Responses)-1].GetResponseRange()
	if len(last.Kvs) == 0 || last.Kvs[0].ModRevision != s.turn {
		s.turn = 0 // somebody deleted it, or has our name: a copy of our copy
	}
	return r, nil
}

// recall finds out what became of a commit whose answer was lost, and ends it if it was not made
// yet.
func (s *Store) recall(mark string, lost error) (*clientv3.TxnResponse, error) {
	s.turn = 0
	for end := time.Now().Add(askTime); s.ctx.Err() == nil && time.Now().Before(end); {
		ctx, cancel := context.WithTimeout(s.ctx, askTime/2)
		r, err := s.client.Txn(ctx).If(clientv3.Compare(clientv3.Value(s.keyTurn()), "=", mark)).
			Then(clientv3.OpGet(s.keyTurn())).Else(clientv3.OpPut(s.keyTurn(), rand.Text())).Commit()
		cancel()
		if err != nil {
			s.sleep(50 * time.Millisecond)
			continue
		}
		s.heard()
		if !r.Succeeded {
			s.turn = r.Header.Revision
			return nil, fmt.Errorf("%w; nothing was changed", lost)
		}
		s.turn = r.Responses[0].GetResponseRange().Kvs[0].ModRevision
		made := &clientv3.TxnResponse{Succeeded: true}
		made.Header = r.Header
		made.Header.Revision = s.turn
		return made, nil
	}
	return nil, fmt.Errorf("%w; whether the change was made is not known", lost)
}

// endTurns removes our key, if the next process will not be known by it.
func (s *Store) endTurns() {
	if s.cfg.Copy != "" || s.turn == 0 {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	s.client.Delete(ctx, s.keyTurn())
}
