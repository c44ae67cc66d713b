package control

import (
	"context"
	"errors"
	"strings"
	"sync"
	"time"

	"vrdma.dev/vrdma/internal/tenancy/store"
)

// A remote is one daemon's connection to a shared store. It can be cut.
type remote struct {
	*store.Memory
	mu    sync.Mutex
	cut   chan struct{} // closed when the connection works again; nil: it works
	old   []store.Entry // the last state, while it is cut
	at    int64
	heard time.Time
	// listed is called between reading the store and the return of what was read.
	listed func()
}

var _ store.Remote = (*remote)(nil)

func (r *remote) List(prefix string) ([]store.Entry, int64, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.cut == nil {
		entries, at, err := r.Memory.List(prefix)
		if f := r.listed; f != nil {
			r.mu.Unlock()
			f()
			r.mu.Lock()
		}
		return entries, at, err
	}
	var out []store.Entry
	for _, e := range r.old {
		if strings.HasPrefix(e.Key, prefix) {
			out = append(out, e)
		}
	}
	return out, r.at, nil
}

func (r *remote) Commit(c []store.Condition, w []store.Write) (int64, bool, error) {
	if r.broken() != nil {
		return 0, false, errors.New("the way is cut")
	}
	return r.Memory.Commit(c, w)
}

func (r *remote) Watch(prefix string, revision int64) store.Watcher {
	return &remoteWatcher{r, r.Memory.Watch(prefix, revision)}
}

type remoteWatcher struct {
	r *remote
	w store.Watcher
}

func (w *remoteWatcher) Next(ctx context.Context) (store.Batch, error) {
	b, err := w.w.Next(ctx)
	for cut := w.r.broken(); cut != nil; cut = w.r.broken() {
		select {
		case <-cut:
		case <-ctx.Done():
			return store.Batch{}, ctx.Err()
		}
	}
	return b, err
}

func (r *remote) Health() store.Health {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.cut != nil {
		return store.Health{State: store.Away, Heard: r.heard, Why: errors.New("the way is cut")}
	}
	return store.Health{State: store.InStep, Heard: time.Now()}
}

func (r *remote) Changed() <-chan struct{} { return nil }

func (r *remote) Alive(key string, value []byte, ttl time.Duration) func() {
	r.Memory.Commit(nil, []store.Write{{Key: key, Value: value}})
	return func() {}
}

func (r *remote) broken() chan struct{} {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.cut
}

// onList calls f after the store was read and before the reading returns.
func (r *remote) onList(f func()) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.listed = f
}

// partition cuts the connection, or restores it.
func (r *remote) partition(cut bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	switch {
	case cut && r.cut == nil:
		r.old, r.at, _ = r.Memory.List("")
		r.cut, r.heard = make(chan struct{}), time.Now()
	case !cut && r.cut != nil:
		close(r.cut)
		r.cut = nil
	}
}
