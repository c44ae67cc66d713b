package main

import (
	"fmt"

	"vrdma/internal/control"
	"vrdma/internal/frontdoor"
	"vrdma/internal/vnic"
)

// workloads are the containers that have NICs of a daemon. It implements control.Workloads.
type workloads struct{ *daemon }

func (w workloads) Bind(b control.Binding) error {
	n := w.nics.Named(b.NIC.Path())
	if n == nil {
		return fmt.Errorf("%v is not on this host", b.NIC)
	}
	return w.server.Bind(n, frontdoor.Binding{Cookie: b.Cookie, Path: b.Namespace, Name: b.Title(), Note: b, Ends: b.Ends})
}

func (w workloads) Unbind(of control.Binding) (gone []control.Binding) {
	w.server.Unbind(func(_ *vnic.NIC, b *frontdoor.Binding) bool {
		made, ok := b.Note.(control.Binding)
		if ok = ok && of.Matches(&made); ok {
			gone = append(gone, made)
		}
		return ok
	})
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
