package daemon

import (
	"encoding/json"
	"slices"

	"vrdma.dev/vrdma/internal/client/server"
	"vrdma.dev/vrdma/internal/device/registry"
	"vrdma.dev/vrdma/internal/tenancy/control"
)

// In a live upgrade the next daemon reads the file of bindings when it opens. The old one still binds and unbinds NICs
// then, so the state has the bindings as they are at the end.

// freeze returns the bindings, for the next daemon's thaw.
func (w *workloads) freeze() ([]byte, error) { return json.Marshal(w.Bindings()) }

// thaw makes the bindings those that freeze has returned; nil: the other daemon has not sent any.
func (w *workloads) thaw(text []byte) {
	var want []control.Binding
	if len(text) == 0 {
		return
	}
	if err := json.Unmarshal(text, &want); err != nil {
		w.log.Error("bindings of NICs to containers may be out of date", "error", err)
		return
	}
	have := w.Bindings()
	for _, b := range want {
		if slices.Contains(have, b) {
			continue
		}
		if err := w.Bind(b); err != nil {
			w.log.Warn("the binding of a NIC to a container is lost", "nic", b.NIC.Path(), "container", b.Title(), "error", err)
		}
	}
	w.server.Unbind(func(_ *registry.NIC, b *server.Binding) bool {
		made, ok := b.Note.(control.Binding)
		return ok && !slices.Contains(want, made)
	})
}
