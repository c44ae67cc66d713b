package etcd

import (
	"bytes"
	"context"
	"errors"
	"time"

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
	once, cancel := context.WithTimeout(ctx, askTime)
	defer cancel()
	lease, err := h.etcd.client.Grant(once, max(1, int64(h.ttl.Seconds())))
	if err != nil {
		return err
	}
	if _, err := h.etcd.client.Put(once, h.etcd.key(h.key), string(h.value), clientv3.WithLease(lease.ID)); err != nil {
		return err
	}
	answers, err := h.etcd.client.KeepAlive(ctx, lease.ID)
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
