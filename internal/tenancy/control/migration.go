package control

import (
	"bytes"
	"context"
	"crypto/rand"
	"errors"
	"fmt"

	"vrdma.dev/vrdma/internal/tenancy/store"
	"vrdma.dev/vrdma/internal/tenancy/tenant"
)

// A NIC that programs have open moves to another host. Its placement is the point of no return: the next host writes itself into
// it, when it has restored everything. The NIC's state has the revision of the placement. Any other write of the placement makes the
// state useless: a host that keeps the NIC writes it, and so does one where the NIC is opened again.
//
//	on a, open, revision r ── Take on b, state of r ──▶ on b, open
//	                       ── Keep on a ──────────────▶ on a, open, another revision

// keySecret is the key of the secret with which hosts authenticate the state of a NIC.
const keySecret = "secret/move"

// secretSize is the size of that secret in bytes.
const secretSize = 32

// MoveSecret is the secret that the hosts of the store share. The first host that asks makes it.
func (p *Plane) MoveSecret() ([]byte, error) {
	if !p.health.shared() {
		return nil, errors.New("this daemon has a store of its own: hosts that share a store can move a NIC with its programs")
	}
	for range mostTries {
		entries, _, err := p.cfg.Store.List(keySecret)
		if err != nil {
			return nil, err
		}
		for _, e := range entries {
			if e.Key == keySecret && len(e.Value) == secretSize {
				return bytes.Clone(e.Value), nil
			}
		}
		if len(entries) > 0 {
			return nil, fmt.Errorf("the store's entry %s is damaged: delete it", keySecret)
		}
		fresh := make([]byte, secretSize)
		rand.Read(fresh) // never fails
		_, ok, err := p.cfg.Store.Commit([]store.Condition{{Key: keySecret}}, []store.Write{{Key: keySecret, Value: fresh}})
		if err != nil {
			return nil, err
		}
		if ok {
			return fresh, nil
		}
	}
	return nil, errConflict
}

// moves marks a NIC as moving: its placement does not follow its users. end undoes it.
func (pl *placements) moves(k tenant.Key) (end func(), err error) {
	pl.mu.Lock()
	defer pl.mu.Unlock()
	if pl.moving[k] {
		return nil, fmt.Errorf("%v is moving already", k)
	}
	if pl.moving == nil {
		pl.moving = make(map[tenant.Key]bool)
	}
	pl.moving[k] = true
	return func() {
		pl.mu.Lock()
		defer pl.mu.Unlock()
		delete(pl.moving, k)
	}, nil
}

// movable returns a NIC that can move with its programs, and its placement.
func (pl *placements) movable(k tenant.Key) (*snapshot, *tenant.NIC, placement, error) {
	s := pl.snapshots.now.Load()
	n := s.world.NIC(k.Tenant, k.Name)
	if n == nil {
		return s, nil, placement{}, fmt.Errorf("%v is not declared", k)
	}
	at := s.placements[k]
	why := pl.registration.reason()
	if why == "" {
		why = pl.health.away()
	}
	network := s.world.Network(n.Metadata.Tenant, n.Spec.Network)
	switch {
	case why != "":
		return s, n, at, errors.New(why)
	case network == nil || network.Spec.Way != tenant.WayVXLAN && network.Spec.Way != "":
		return s, n, at, fmt.Errorf("the address of %v does not belong to vrdma: only NICs of networks with way vxlan move", k)
	case n.Spec.Host != "":
		return s, n, at, fmt.Errorf("spec.host of %v pins it to host %s: remove spec.host first", k, n.Spec.Host)
	}
	return s, n, at, nil
}

// Leave begins the move of a NIC that programs have open here. The revision belongs to its state. Until end is called, the
// placement stays as it is.
func (p *Plane) Leave(k tenant.Key) (revision int64, end func(), err error) {
	_, _, at, err := p.placements.movable(k)
	if err != nil {
		return 0, nil, err
	}
	if at.Host != p.cfg.Host || !at.Open {
		return 0, nil, fmt.Errorf("no program has %v open on this host", k)
	}
	end, err = p.placements.moves(k)
	return at.revision, end, err
}

// Keep keeps a NIC here that was about to move. After an error another host may have it.
func (p *Plane) Keep(k tenant.Key, revision int64) error {
	return p.placements.transfer(k, p.cfg.Host, revision, func(next *placement) {})
}

// Expect begins the arrival of a NIC from another host. Until end is called, its users do not change the placement.
func (p *Plane) Expect(k tenant.Key, from string, revision int64) (end func(), err error) {
	_, _, at, err := p.placements.movable(k)
	if err != nil {
		return nil, err
	}
	if err := at.is(k, from, revision); err != nil {
		return nil, err
	}
	return p.placements.moves(k)
}

// Take moves the placement of a NIC from another host to this one: the point of no return. counted are the NIC's counters.
func (p *Plane) Take(k tenant.Key, from string, revision int64, counted string) error {
	err := p.placements.transfer(k, from, revision, func(next *placement) {
		if next.Host = p.cfg.Host; len(counted) <= mostCounted {
			next.Counted = counted
		}
	})
	if err == nil {
		p.overlay.update()
	}
	return err
}

// is returns an error if a placement is not that of a NIC with a state of this revision.
func (at *placement) is(k tenant.Key, host string, revision int64) error {
	switch {
	case at.Host != host:
		return fmt.Errorf("%v is on host %s, not on %s: its state was used already", k, at.Host, host)
	case at.revision != revision || !at.Open:
		return fmt.Errorf("%v has gone on at host %s since its state was taken: the state is of no use", k, host)
	}
	return nil
}

// transfer writes the next placement of a NIC that is on a host, with a state of a revision.
func (pl *placements) transfer(k tenant.Key, host string, revision int64, change func(next *placement)) error {
	pl.mu.Lock()
	defer pl.mu.Unlock()
	for range mostTries {
		_, moved := pl.snapshots.current()
		s, n, at, err := pl.movable(k)
		if err == nil {
			err = at.is(k, host, revision)
		}
		if err != nil {
			return err
		}
		next := placement{Schema: store.Schema, Host: host, Generation: at.Generation + 1, Open: true, Counted: at.Counted}
		change(&next)
		ok, err := pl.move(s, n, next)
		if err != nil || ok {
			return err
		}
		if err := pl.changed(k, moved); err != nil {
			return err
		}
	}
	return fmt.Errorf("%v: %w", k, errConflict)
}

// AwaitMoved waits until a NIC is on another host.
func (p *Plane) AwaitMoved(ctx context.Context, k tenant.Key) error {
	for {
		s, moved := p.snapshots.current()
		if s.placements[k].Host != p.cfg.Host {
			return nil
		}
		select {
		case <-moved:
		case <-ctx.Done():
			return ctx.Err()
		case <-p.ended.Done():
			return store.ErrClosed
		}
	}
}

// Counted are the counters of a NIC on this host, for the next one; "": there are none.
func (p *Plane) Counted(k tenant.Key) string {
	if c, is := p.cfg.Provisioner.(CounterKeeper); is {
		return c.Counted(k)
	}
	return ""
}
