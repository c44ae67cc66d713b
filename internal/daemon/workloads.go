package daemon

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"time"

	"vrdma.dev/vrdma/internal/client/server"
	"vrdma.dev/vrdma/internal/device/registry"
	"vrdma.dev/vrdma/internal/events"
	"vrdma.dev/vrdma/internal/tenancy/control"
	"vrdma.dev/vrdma/internal/tenancy/provision"
	"vrdma.dev/vrdma/internal/tenancy/tenant"
)

// workloads are the containers that NICs are bound to. It implements control.Workloads for engines, and provision.Workloads.
type workloads struct {
	nics        *registry.Table
	server      *server.Server         // set before NICs are created
	provisioner *provision.Provisioner // likewise
	events      events.Sink
	log         *slog.Logger
	saved       bindings
	cdi         *cdiFiles
	wake        chan struct{} // holds one: NICs were created
}

// Bind implements control.Workloads.
func (w *workloads) Bind(b control.Binding) error {
	n := w.nics.Named(b.NIC.Path())
	if n == nil {
		return fmt.Errorf("%v is not on this host", b.NIC)
	}
	err := w.server.Bind(n, server.Binding{Cookie: b.Cookie, Path: b.Namespace, Name: b.Title(), Note: b, Ends: b.Ends})
	if err == nil {
		w.save()
	}
	return err
}

// Plug implements control.Workloads: it makes the NIC an interface of the container, if its network has interfaces.
func (w *workloads) Plug(b control.Binding) (control.Interface, error) {
	is, err := w.provisioner.Plug(b.NIC, interfaceConfig(&b))
	if errors.Is(err, provision.ErrNoPort) {
		return control.Interface{}, nil
	}
	return control.Interface{Name: is.Name, MAC: is.MAC, MTU: is.MTU, Addresses: is.Addresses}, err
}

func interfaceConfig(b *control.Binding) provision.InterfaceConfig {
	return provision.InterfaceConfig{Namespace: b.Namespace, Cookie: b.Cookie, Interface: b.Interface, Who: b.Title()}
}

// Unbind implements control.Workloads.
func (w *workloads) Unbind(of control.Binding) (gone []control.Binding) {
	w.server.Unbind(func(_ *registry.NIC, b *server.Binding) bool {
		made, ok := b.Note.(control.Binding)
		if ok = ok && of.Matches(&made); ok {
			gone = append(gone, made)
		}
		return ok
	})
	gone = append(gone, w.saved.drop(&of)...)
	if len(gone) == 0 {
		return nil
	}
	left := w.Bindings()
	for _, b := range gone {
		// The containers of a pod share a namespace and its interface.
		if !slices.ContainsFunc(left, func(o control.Binding) bool { return o.NIC == b.NIC && o.Cookie == b.Cookie && o.Plug }) {
			w.provisioner.Unplug(b.NIC, b.Cookie)
		}
	}
	w.save()
	return gone
}

// Bindings implements control.Workloads.
func (w *workloads) Bindings() (out []control.Binding) {
	w.server.Bindings(func(b *server.Binding) {
		if made, ok := b.Note.(control.Binding); ok {
			out = append(out, made)
		}
	})
	return out
}

// MayOpen implements control.Workloads.
func (w *workloads) MayOpen(k tenant.Key, uid int, gids []int) error {
	return w.provisioner.MayOpen(k, uid, gids)
}

// Name implements control.Workloads.
func (w *workloads) Name(cookie uint64, name string) { w.server.Name(cookie, name) }

// Bound implements provision.Workloads.
func (w *workloads) Bound(k tenant.Key) []server.Binding { return w.saved.of(k) }

// Plugs implements provision.Workloads.
func (w *workloads) Plugs(k tenant.Key) bool {
	return slices.ContainsFunc(w.Bindings(), func(b control.Binding) bool { return b.NIC == k && b.Plug })
}

// Changed implements provision.Workloads: CDI files name the NICs, and containers get interfaces of NICs that are new.
func (w *workloads) Changed() {
	w.cdi.changed()
	select {
	case w.wake <- struct{}{}:
	default:
	}
}

// save writes the bindings for the next daemon.
func (w *workloads) save() {
	w.saved.saving.Lock()
	defer w.saved.saving.Unlock()
	var now []savedBound
	w.server.Bindings(func(b *server.Binding) {
		if made, ok := b.Note.(control.Binding); ok {
			now = append(now, savedBound{made, b.Since})
		}
	})
	if err := w.saved.write(now); err != nil {
		w.log.Warn("bindings of NICs to containers will be lost at a restart: they cannot be written", "file", w.saved.path, "error", err)
	}
}

// restore makes the interfaces again that containers had when the last daemon ended, until ctx ends.
func (w *workloads) restore(ctx context.Context) {
	for {
		var again <-chan time.Time
		if w.restoreOnce(ctx) {
			again = time.After(restoreAgain)
		}
		select {
		case <-w.wake:
		case <-again:
		case <-ctx.Done():
			return
		}
	}
}

// An interface that cannot be made is tried mostRestores times, restoreAgain apart: another host may be about to release the NIC.
const (
	restoreAgain = 5 * time.Second
	mostRestores = 24
)

// restoreOnce tries the containers whose NICs exist. It reports whether some are left.
func (w *workloads) restoreOnce(ctx context.Context) bool {
	list := w.saved.toPlug()
	if len(list) == 0 {
		return false
	}
	bound := func(b control.Binding) bool { return slices.Contains(w.Bindings(), b) }
	var left []toPlug
	for _, p := range list {
		var err error
		switch {
		case ctx.Err() != nil:
			return false
		case w.provisioner.NIC(p.NIC) == nil:
			err = errors.New("its NIC is not here yet")
		case !bound(p.Binding):
			continue // the container has ended
		case w.provisioner.Plugged(p.NIC, p.Cookie):
			continue // the daemon before has handed it over, with the name that it has now
		default:
			if _, err = w.provisioner.Plug(p.NIC, interfaceConfig(&p.Binding)); errors.Is(err, provision.ErrNoPort) {
				continue
			}
			if err == nil {
				if !bound(p.Binding) { // it ended meanwhile
					w.provisioner.Unplug(p.NIC, p.Cookie)
				}
				continue
			}
		}
		switch p.tries++; p.tries {
		case 1:
			w.noInterface(p.NIC, fmt.Errorf("%s: %w; the daemon tries again", p.Title(), err))
		case mostRestores:
			w.noInterface(p.NIC, fmt.Errorf("%s: %w; the daemon gives up: start the container again", p.Title(), err))
			continue
		}
		left = append(left, p)
	}
	w.saved.again(left)
	w.save() // between toPlug and again the file had not all of them
	return len(left) > 0
}

// noInterface reports a container that has no interface with its NIC's address.
func (w *workloads) noInterface(k tenant.Key, why error) {
	w.log.Warn(events.OnlyRDMA, "nic", k.Path(), "why", why)
	w.events.Record(events.NoInterface(k, why))
}
