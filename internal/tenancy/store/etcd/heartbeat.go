package etcd

import (
	"bytes"
	"context"
	"errors"
	"maps"
	"sync"
	"time"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"

	"vrdma.dev/vrdma/internal/tenancy/store"
)

// A heartbeat keeps one entry in etcd on a lease.
//
// The client's keep-alive channel ends for good when etcd was away for longer than the lease. The entry then
// expires, although etcd is back. So run requests a new lease and puts the entry again.
type heartbeat struct {
	etcd   *cluster
	health *health
	key    string
	value  []byte
	ttl    time.Duration
	leases *leases
	begun  bool // the entry was written, or taken over from the daemon before
}

// leases are the leases of entries that are kept alive, by key.
type leases struct {
	mu sync.Mutex
	of map[string]int64
}

func (l *leases) get(key string) clientv3.LeaseID {
	l.mu.Lock()
	defer l.mu.Unlock()
	return clientv3.LeaseID(l.of[key])
}

func (l *leases) set(key string, id clientv3.LeaseID) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.of == nil {
		l.of = make(map[string]int64)
	}
	l.of[key] = int64(id)
}

func (l *leases) all() map[string]int64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	return maps.Clone(l.of)
}

// run keeps the entry until ctx ends.
func (h *heartbeat) run(ctx context.Context) {
	for ctx.Err() == nil {
		if err := h.hold(ctx); err != nil && ctx.Err() == nil {
			h.etcd.cfg.Log.Debug("the store does not know that this host is alive", "error", err)
		}
		select {
		case <-time.After(min(h.ttl/10, time.Second)):
		case <-ctx.Done():
		}
	}
}

// hold keeps the entry on one lease until the lease ends.
func (h *heartbeat) hold(ctx context.Context) error {
	if err := h.health.strange(); err != nil {
		return err // never write to another store
	}
	lease, err := h.lease(ctx)
	if err != nil {
		return err
	}
	answers, err := h.etcd.client.KeepAlive(ctx, lease)
	if err != nil {
		return err
	}
	for n := 0; ; n++ {
		select {
		case _, more := <-answers:
			if !more {
				return errors.New("the lease has expired")
			}
		case <-ctx.Done():
			return ctx.Err()
		}
		h.etcd.heard()
		// Another client may have deleted the entry. The first answer arrives before the copy has the entry.
		if n > 0 && h.health.now().State == store.InStep && !bytes.Equal(h.etcd.copy.Get(h.key).Value, h.value) {
			return errors.New("the entry was removed")
		}
	}
}

// lease returns the lease that has the entry: at first that of the daemon before, if it has not expired, else a new one. etcd
// then never sees the entry without a lease, and no watcher sees a change.
func (h *heartbeat) lease(ctx context.Context) (clientv3.LeaseID, error) {
	ctx, cancel := context.WithTimeout(ctx, askTime)
	defer cancel()
	if id := h.leases.get(h.key); id != 0 && !h.begun {
		_, err := h.etcd.client.KeepAliveOnce(ctx, id)
		if err == nil && bytes.Equal(h.etcd.copy.Get(h.key).Value, h.value) {
			h.begun = true
			return id, nil
		}
		if err != nil && !errors.Is(err, rpctypes.ErrLeaseNotFound) {
			return 0, err
		}
		h.leases.set(h.key, 0)
	}
	granted, err := h.etcd.client.Grant(ctx, max(1, int64(h.ttl.Seconds())))
	if err != nil {
		return 0, err
	}
	if _, err := h.etcd.client.Put(ctx, h.etcd.key(h.key), string(h.value), clientv3.WithLease(granted.ID)); err != nil {
		return 0, err
	}
	h.leases.set(h.key, granted.ID)
	h.begun = true
	return granted.ID, nil
}
