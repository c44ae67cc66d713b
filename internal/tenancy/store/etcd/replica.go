package etcd

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"

	"go.etcd.io/etcd/api/v3/mvccpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"vrdma.dev/vrdma/internal/tenancy/store"
)

// The store's own keys, which List does not return.
const (
	keyCommit    = store.Reserved + "commit"  // a large commit that is visible
	prefixStage  = store.Reserved + "stage/"  // its pieces, and those of commits to come
	prefixWriter = store.Reserved + "writer/" // the writer of a commit
	// The keys below endRead are read and watched: all but the pieces and the writers.
	endRead = store.Reserved + "s"
)

// pageSize is how many entries one answer has.
const pageSize = 5000

// A compromised host may write as much as etcd holds, and must not exhaust the memory of all daemons. So a daemon reads nothing from
// a store with more than mostHeld bytes, and no answer above mostAnswer. 50 000 NICs have about 100 MB.
const (
	mostHeld   = 512 << 20
	mostAnswer = 64 << 20
	// largeTime is the time between two lists of a store that is too large.
	largeTime = 30 * time.Second
)

// most is how many bytes the daemon takes from the store.
func (r *replica) most() int { return cmp.Or(r.etcd.cfg.most, mostHeld) }

// tooLarge is the error for a store with more than most bytes.
func (r *replica) tooLarge() error {
	return &errStrange{large: true, text: fmt.Sprintf("the store has more than %d bytes below %s: nothing is taken from it; see who writes there (etcdctl get --prefix --keys-only)", r.most(), r.etcd.cfg.Prefix)}
}

// mostProblems bounds the problems that are kept.
const mostProblems = 100

// errAgain: the watch has to be opened again.
var errAgain = errors.New("the connection to the store was lost")

// A replica keeps the copy in step with etcd: it lists, and then follows a watch.
type replica struct {
	etcd     *cluster
	health   *health
	watching atomic.Bool   // the copy follows a watch
	first    chan struct{} // closed when the copy is in step for the first time

	mu       sync.Mutex         // guards the fields below
	taken    int                // bytes of the entries listed, and of all changes since
	seen     int64              // etcd's revision up to which the copy has everything; 0: list
	physical map[string]int64   // ModRevisions in etcd of entries whose revision in the copy is another
	pending  *pending           // a large commit that is visible, and whose pieces are being copied
	moved    chan struct{}      // closed and replaced when seen, physical or pending change
	stop     context.CancelFunc // ends the watch, so that another begins; nil: there is no watch
}

func newReplica(e *cluster, h *health) *replica {
	return &replica{etcd: e, health: h, first: make(chan struct{}), physical: make(map[string]int64), moved: make(chan struct{})}
}

// visible returns the large commit that is visible; nil: there is none.
func (r *replica) visible() *pending {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.pending
}

// follow keeps the copy in step until the store is closed.
func (r *replica) follow() {
	wait := time.Duration(0)
	for r.etcd.ctx.Err() == nil {
		began := time.Now()
		err := r.session()
		r.watching.Store(false)
		if r.etcd.ctx.Err() != nil {
			return
		}
		// A watch that was opened again is no outage.
		if !errors.Is(err, errAgain) && !compacted(err) {
			r.health.judge(err)
		}
		if wait = min(max(2*wait, 20*time.Millisecond), time.Second); time.Since(began) > 5*time.Second {
			wait = 0
		}
		if compacted(err) {
			// All other daemons may have to list as well.
			r.mu.Lock()
			r.seen = 0
			r.mu.Unlock()
			wait = rand.N(relistJitter)
		}
		if odd := (*errStrange)(nil); errors.As(err, &odd) && odd.large {
			wait = cmp.Or(r.etcd.cfg.again, largeTime)
		}
		if !r.etcd.sleep(wait) {
			return
		}
	}
}

func compacted(err error) bool { return errors.Is(err, rpctypes.ErrCompacted) }

// watches sets the function that ends the watch; nil: there is none.
func (r *replica) watches(stop context.CancelFunc) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.stop = stop
}

// restart ends the watch, so that another begins. Without a watch it does nothing: every request has its own
// deadline, and a slow list is not interrupted.
func (r *replica) restart() {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.stop != nil {
		r.stop()
	}
}

// session lists if necessary, and then watches until an error.
//
// The order matters. session opens the watch, then asks etcd which store it is, and only then applies changes,
// as long as they come from the same stream. So it never applies a change of another store.
func (r *replica) session() error {
	ctx, cancel := context.WithCancel(clientv3.WithRequireLeader(r.etcd.ctx))
	defer cancel()
	defer r.watches(nil)
	strange := r.health.strange()
	r.mu.Lock()
	fresh := r.seen == 0
	r.mu.Unlock()
	if err := r.verify(ctx); err != nil {
		return err
	}
	if fresh || strange != nil {
		if err := r.list(ctx); err != nil {
			return err
		}
	}
	r.mu.Lock()
	from := r.seen + 1
	r.mu.Unlock()
	r.watches(cancel)
	watch := r.etcd.client.Watch(ctx, r.etcd.cfg.Prefix, clientv3.WithRange(r.etcd.key(endRead)), clientv3.WithRev(from), clientv3.WithCreatedNotify(), clientv3.WithFragment())
	stream := int64(-1)
	for resp := range watch {
		if err := resp.Err(); err != nil {
			return err
		}
		r.etcd.heard()
		if resp.Created {
			stream = r.etcd.streams.Load()
			if err := r.verify(ctx); err != nil {
				if ctx.Err() != nil {
					return errAgain // probe has reported why
				}
				return err
			}
			if r.etcd.streams.Load() != stream {
				return errAgain
			}
			r.inStep()
			continue
		}
		if r.etcd.streams.Load() != stream {
			return errAgain
		}
		if err := r.take(ctx, resp.Events); err != nil {
			if ctx.Err() != nil {
				return errAgain
			}
			return err
		}
	}
	return errAgain
}

// inStep records that the copy follows a watch.
func (r *replica) inStep() {
	r.watching.Store(true)
	r.health.set(store.InStep, nil)
	select {
	case <-r.first:
	default:
		close(r.first)
	}
}

// list replaces the copy by what etcd has at one revision.
func (r *replica) list(ctx context.Context) error {
	var entries []store.Entry
	var commit *mvccpb.KeyValue
	revision, from := int64(0), r.etcd.cfg.Prefix
	r.health.clearProblems()
	page, taken := int64(pageSize), 0
	for more := true; more; {
		once, cancel := context.WithTimeout(ctx, askTime)
		resp, err := r.etcd.client.Get(once, from, clientv3.WithRange(r.etcd.key(endRead)), clientv3.WithLimit(page), clientv3.WithRev(revision))
		cancel()
		if status.Code(err) == codes.ResourceExhausted && page > 1 {
			page /= 8 // the answer is larger than mostAnswer
			continue
		}
		if err != nil {
			return err
		}
		r.etcd.heard()
		if revision == 0 {
			revision = resp.Header.Revision
		}
		for _, kv := range resp.Kvs {
			if taken += len(kv.Key) + len(kv.Value); taken > r.most() {
				return r.tooLarge()
			}
			e, err := r.etcd.entry(kv)
			switch {
			case e.Key == keyCommit:
				commit = kv
			case e.Key == store.KeyMeta && r.etcd.same(e.Value) != nil:
				return r.etcd.same(e.Value)
			case err != nil:
				r.health.problem(err)
			default:
				entries = append(entries, e)
			}
		}
		if more = resp.More && len(resp.Kvs) > 0; more {
			from = string(resp.Kvs[len(resp.Kvs)-1].Key) + "\x00"
		}
	}
	physical := make(map[string]int64, len(entries))
	for _, e := range entries {
		physical[e.Key] = e.Revision
	}
	var p *pending
	if commit != nil {
		var err error
		if p, err = r.open(ctx, commit, revision); err != nil {
			return err
		}
		p.expect(func(key string) int64 { return physical[key] })
		entries = p.over(entries)
	}
	r.replace(entries, physical, revision, p, taken)
	return nil
}

// replace replaces the copy by a list. physical has the ModRevisions of its entries in etcd.
func (r *replica) replace(entries []store.Entry, physical map[string]int64, revision int64, p *pending, taken int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.etcd.copy.Replace(entries, revision)
	for key, at := range physical {
		if r.etcd.copy.Get(key).Revision == at {
			delete(physical, key)
		}
	}
	r.physical, r.seen, r.pending, r.taken = physical, revision, p, taken
	r.move()
}

// take applies events. They come in the order of their revisions, and all events of a revision come together.
func (r *replica) take(ctx context.Context, events []*clientv3.Event) error {
	if r.grows(events) {
		r.forget() // a list finds out how much is there now
		return errAgain
	}
	for len(events) > 0 {
		n, revision := 1, events[0].Kv.ModRevision
		for n < len(events) && events[n].Kv.ModRevision == revision {
			n++
		}
		if err := r.step(ctx, revision, events[:n]); err != nil {
			return err
		}
		events = events[n:]
	}
	return nil
}

// grows counts the bytes of events, and reports whether the store may be too large now.
func (r *replica) grows(events []*clientv3.Event) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, ev := range events {
		r.taken += len(ev.Kv.Key) + len(ev.Kv.Value)
	}
	return r.taken > r.most()
}

// step applies the events of one revision.
func (r *replica) step(ctx context.Context, revision int64, events []*clientv3.Event) error {
	var changes []store.Change
	r.mu.Lock()
	now := r.pending
	r.mu.Unlock()
	physical := make(map[string]int64)
	for _, ev := range events {
		e, err := r.etcd.entry(ev.Kv)
		deleted := ev.Type == clientv3.EventTypeDelete
		switch {
		case e.Key == keyCommit && deleted:
			if now != nil && len(now.missing) > 0 {
				// A client removed the commit before all of it was copied.
				r.forget()
				return errAgain
			}
			now = nil
		case e.Key == keyCommit:
			if now, err = r.open(ctx, ev.Kv, revision); err != nil {
				return err
			}
			now.expect(r.physicalOf)
			changes = append(changes, now.changes()...)
		case err != nil:
			r.health.problem(err)
		case e.Key == store.KeyMeta && now.copied(e, deleted):
			physical[e.Key] = revision
		case e.Key == store.KeyMeta && deleted:
			if err := r.etcd.same(nil); err != nil {
				return err
			}
		case e.Key == store.KeyMeta && r.etcd.same(e.Value) != nil:
			return r.etcd.same(e.Value)
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
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, c := range changes {
		delete(r.physical, c.Key)
	}
	for key, at := range physical {
		delete(now.missing, key)
		if r.physical[key] = at; at == 0 {
			delete(r.physical, key)
		}
	}
	r.etcd.copy.Advance(revision, changes)
	r.seen, r.pending = revision, now
	r.move()
	return nil
}

// forget makes the next session list.
func (r *replica) forget() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.seen = 0
}

// physicalOf is the revision at which etcd has an entry; 0: etcd does not have it. Only the goroutine of follow
// changes it.
func (r *replica) physicalOf(key string) int64 {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.etcdHas(key)
}

// etcdHas is physicalOf with mu held.
func (r *replica) etcdHas(key string) int64 {
	if at, known := r.physical[key]; known {
		return at
	}
	return r.etcd.copy.Get(key).Revision
}

// await waits until holds returns true, and reports whether it did before ctx ended. It calls holds with mu held.
func (r *replica) await(ctx context.Context, holds func() bool) bool {
	for {
		r.mu.Lock()
		if holds() {
			r.mu.Unlock()
			return true
		}
		moved := r.moved
		r.mu.Unlock()
		select {
		case <-moved:
		case <-ctx.Done():
			return false
		}
	}
}

// move wakes the callers of await. mu is held.
func (r *replica) move() {
	close(r.moved)
	r.moved = make(chan struct{})
}

// verify asks etcd which store it is. It returns an *errStrange if etcd is not the store of the copy. The cluster
// id does not show that: an etcd that lost its data keeps its id, and its revisions begin again.
func (r *replica) verify(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, askTime/2)
	defer cancel()
	resp, err := r.etcd.client.Get(ctx, r.etcd.key(store.KeyMeta))
	if err != nil {
		return err
	}
	r.etcd.heard()
	var value []byte
	if len(resp.Kvs) > 0 {
		value = resp.Kvs[0].Value
	}
	if err := r.etcd.same(value); err != nil {
		return err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if seen := max(r.seen, r.etcd.copy.Revision()); resp.Header.Revision < seen {
		return strange("the store is at revision %d and was at %d: it was restored from a backup, or it is another one. %s", resp.Header.Revision, seen, r.etcd.advice())
	}
	return nil
}

// probe calls verify every few seconds. A watch is silent both when nothing changes and when etcd is away.
func (r *replica) probe() {
	for n := 1; ; n++ {
		// The jitter keeps daemons that start together from asking together.
		if !r.etcd.sleep(probeEvery/2 + rand.N(probeEvery)) {
			return
		}
		err := r.verify(r.etcd.ctx)
		if err != nil {
			err = r.verify(r.etcd.ctx) // the client asks another member
		}
		if err == nil {
			if r.health.now().State == store.Away && r.watching.Load() {
				r.health.set(store.InStep, nil)
			}
			if n%12 == 0 {
				r.etcd.copy.Save() // with the time of the last answer
			}
			continue
		}
		r.health.judge(err)
		r.restart() // the watch may hang
	}
}

// open reads a visible large commit. The error is etcd's. What is wrong with the commit itself is in broken.
func (r *replica) open(ctx context.Context, kv *mvccpb.KeyValue, revision int64) (*pending, error) {
	p := &pending{at: kv.ModRevision}
	if err := json.Unmarshal(kv.Value, &p.record); err != nil || !validID(p.ID) {
		p.broken = fmt.Errorf("the entry %s of the store is not a commit: %.80q", keyCommit, kv.Value)
	} else if p.Schema > store.Schema {
		p.broken = fmt.Errorf("a large commit to the store has schema %d, this version reads %d: use a newer vrdma", p.Schema, store.Schema)
	}
	if p.broken != nil {
		r.health.problem(p.broken)
		return p, nil
	}
	prefix := r.etcd.key(prefixStage + p.ID + "/")
	from := prefix
	var found, taken int
	writes := make(map[string]store.Write)
	for more := true; more && p.broken == nil; {
		once, cancel := context.WithTimeout(ctx, askTime)
		// One answer must not exceed some tens of megabytes.
		resp, err := r.etcd.client.Get(once, from, clientv3.WithRange(clientv3.GetPrefixRangeEnd(prefix)), clientv3.WithLimit(16), clientv3.WithRev(revision))
		cancel()
		if err != nil {
			return nil, err
		}
		r.etcd.heard()
		for _, piece := range resp.Kvs {
			if taken += len(piece.Value); taken > r.most() {
				return nil, r.tooLarge()
			}
			list, err := readWrites(piece.Value)
			if err != nil {
				p.broken = fmt.Errorf("%.120q: %w", piece.Key, err)
				break
			}
			for _, w := range list {
				if _, twice := writes[w.Key]; twice || w.Key == store.KeyMeta && !w.Delete && r.etcd.same(w.Value) != nil || w.Key == store.KeyMeta && w.Delete {
					p.broken = fmt.Errorf("%.120q: %.80q must not be written", piece.Key, w.Key)
				}
				writes[w.Key] = w
			}
			found++
			p.pieces = append(p.pieces, list)
		}
		if more = resp.More && len(resp.Kvs) > 0; more {
			from = string(resp.Kvs[len(resp.Kvs)-1].Key) + "\x00"
		}
	}
	if p.broken == nil && found != p.Pieces {
		p.broken = fmt.Errorf("a large commit to the store has %d pieces, and %d are there", p.Pieces, found)
	}
	if p.broken != nil {
		r.health.problem(p.broken)
		p.pieces = nil
		return p, nil
	}
	p.writes = writes
	return p, nil
}
