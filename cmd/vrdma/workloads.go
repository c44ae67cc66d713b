package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"vrdma/internal/control"
	"vrdma/internal/frontdoor"
	"vrdma/internal/rack"
	"vrdma/internal/tenant"
	"vrdma/internal/vnic"
)

// workloads are the containers that have NICs of a daemon. It implements control.Workloads.
type workloads struct{ *daemon }

func (w workloads) Bind(b control.Binding) error {
	n := w.nics.Named(b.NIC.Path())
	if n == nil {
		return fmt.Errorf("%v is not on this host", b.NIC)
	}
	err := w.server.Bind(n, frontdoor.Binding{Cookie: b.Cookie, Path: b.Namespace, Name: b.Title(), Note: b, Ends: b.Ends})
	if err == nil {
		w.save()
	}
	return err
}

// Plug makes the NIC an interface of the container, where its network has such.
func (w workloads) Plug(b control.Binding) (control.Interface, error) {
	is, err := w.rack.Plug(b.NIC, cableOf(&b))
	if errors.Is(err, rack.ErrNoPort) {
		return control.Interface{}, nil
	}
	return control.Interface{Name: is.Name, MAC: is.MAC, MTU: is.MTU, Addresses: is.Addresses}, err
}

func cableOf(b *control.Binding) rack.Cable {
	return rack.Cable{Namespace: b.Namespace, Cookie: b.Cookie, Interface: b.Interface, Who: b.Title()}
}

func (w workloads) Unbind(of control.Binding) (gone []control.Binding) {
	w.server.Unbind(func(_ *vnic.NIC, b *frontdoor.Binding) bool {
		made, ok := b.Note.(control.Binding)
		if ok = ok && of.Matches(&made); ok {
			gone = append(gone, made)
		}
		return ok
	})
	gone = append(gone, w.bound.drop(&of)...)
	if len(gone) == 0 {
		return nil
	}
	left := w.Bindings()
	for _, b := range gone {
		// The containers of a pod have one namespace, and one interface.
		if !slices.ContainsFunc(left, func(o control.Binding) bool { return o.NIC == b.NIC && o.Cookie == b.Cookie && o.Plug }) {
			w.rack.Unplug(b.NIC, b.Cookie)
		}
	}
	w.save()
	return gone
}

func (w workloads) Bindings() (out []control.Binding) {
	w.server.Bindings(func(b *frontdoor.Binding) {
		if made, ok := b.Note.(control.Binding); ok {
			out = append(out, made)
		}
	})
	return out
}

func (w workloads) Name(cookie uint64, name string) { w.server.Name(cookie, name) }

// save writes down what is bound, for the next daemon.
func (w workloads) save() {
	w.bound.saving.Lock()
	defer w.bound.saving.Unlock()
	var now []savedBound
	w.server.Bindings(func(b *frontdoor.Binding) {
		if made, ok := b.Note.(control.Binding); ok {
			now = append(now, savedBound{made, b.Since})
		}
	})
	if err := w.bound.write(now); err != nil {
		w.log.Warn("which NICs are bound to containers is not known after a restart: it cannot be written", "file", w.bound.path, "error", err)
	}
}

// keepInterfaces has containers that had an interface when a daemon before us ended have it again, until ctx ends.
func (d *daemon) keepInterfaces(ctx context.Context) {
	for {
		var again <-chan time.Time
		if d.restore(ctx) {
			again = time.After(restoreAgain)
		}
		select {
		case <-d.plugs:
		case <-again:
		case <-ctx.Done():
			return
		}
	}
}

// An interface that cannot be had again is tried so often, and so far apart: the host that has its NIC may be about to give it up.
const (
	restoreAgain = 5 * time.Second
	mostRestores = 24
)

// restore tries it once, for those whose NICs have come. It reports whether some are left.
func (d *daemon) restore(ctx context.Context) bool {
	list := d.bound.toPlug()
	if len(list) == 0 {
		return false
	}
	bound := func(b control.Binding) bool { return slices.Contains(workloads{d}.Bindings(), b) }
	var left []toPlug
	for _, p := range list {
		var err error
		switch {
		case ctx.Err() != nil:
			return false
		case d.rack.NIC(p.NIC) == nil:
			err = errors.New("its NIC is not here yet")
		case !bound(p.Binding):
			continue // the container has ended
		default:
			if _, err = d.rack.Plug(p.NIC, cableOf(&p.Binding)); errors.Is(err, rack.ErrNoPort) {
				continue
			}
			if err == nil {
				if !bound(p.Binding) { // it ended meanwhile
					d.rack.Unplug(p.NIC, p.Cookie)
				}
				continue
			}
		}
		switch p.tries++; p.tries {
		case 1:
			d.noInterface(p.NIC, fmt.Errorf("%s: %w; it is tried again", p.Title(), err))
		case mostRestores:
			d.noInterface(p.NIC, fmt.Errorf("%s: %w; it is not tried any more: start the container again", p.Title(), err))
			continue
		}
		left = append(left, p)
	}
	d.bound.again(left)
	workloads{d}.save() // while it was handed over it was nobody's
	return len(left) > 0
}

// plugsSoon reports whether a NIC is bound to a container that is to have it as an interface: then nobody else makes one.
func (d *daemon) plugsSoon(k tenant.Key) bool {
	return slices.ContainsFunc(workloads{d}.Bindings(), func(b control.Binding) bool { return b.NIC == k && b.Plug })
}

// noInterface is told of a container that has no interface with its NIC's address.
func (d *daemon) noInterface(k tenant.Key, why error) {
	d.log.Warn(control.OnlyRDMA, "nic", k.Path(), "why", why)
	d.record(control.Event{Verb: control.EventWarned, Object: k, Reason: control.OnlyRDMA + ": " + why.Error()})
}
