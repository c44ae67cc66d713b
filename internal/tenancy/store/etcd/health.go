package etcd

import (
	"errors"
	"fmt"
	"sync"
	"time"

	"vrdma.dev/vrdma/internal/tenancy/store"
)

// health is whether the copy is in step with etcd. Its state changes as follows; problems are entries that were
// left out of the copy.
//
//	Away ──a watch follows the right store──▶ InStep ──no answer──▶ Away
//	any ──etcd has other contents──▶ Strange ──the right store again──▶ InStep
type health struct {
	etcd *cluster

	mu       sync.Mutex // guards the fields below; a leaf
	state    store.State
	why      error // of state
	problems []string
	changed  chan struct{} // closed and replaced when state changes
}

func newHealth(e *cluster) *health {
	return &health{etcd: e, changed: make(chan struct{}), state: store.Away, why: errors.New("it has not answered yet")}
}

// now returns the current state.
func (h *health) now() store.Health {
	h.mu.Lock()
	defer h.mu.Unlock()
	return store.Health{State: h.state, Heard: h.etcd.copy.Heard(), Why: h.why, Problems: h.problems}
}

// next returns a channel that is closed when the state changes.
func (h *health) next() <-chan struct{} {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.changed
}

// set changes the state. Away does not replace Strange: only the right store ends Strange.
func (h *health) set(state store.State, why error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if state == store.Away && h.state == store.Strange {
		return
	}
	old := h.state
	h.state, h.why = state, why
	if old == state {
		return
	}
	close(h.changed)
	h.changed = make(chan struct{})
	switch state {
	case store.InStep:
		h.etcd.cfg.Log.Info("the store is in step", "store", h.etcd.name())
	case store.Away:
		h.etcd.cfg.Log.Warn("the store does not answer: going on with what it last said", "store", h.etcd.name(), "error", why)
	case store.Strange:
		h.etcd.cfg.Log.Error("the store is another one than before: this host reads nothing from it", "store", h.etcd.name(), "error", why)
	}
}

// errStrange is the error for an etcd whose contents are not those of this store.
type errStrange struct {
	text  string
	large bool // it has too much
}

func (e *errStrange) Error() string { return e.text }

func strange(format string, args ...any) error {
	return &errStrange{text: fmt.Sprintf(format, args...)}
}

// judge sets the state that an error stands for.
func (h *health) judge(err error) {
	var odd *errStrange
	switch {
	case err == nil, h.etcd.ctx.Err() != nil:
	case errors.As(err, &odd):
		h.set(store.Strange, err)
	default:
		h.set(store.Away, h.etcd.explain(err))
	}
}

// problem records an entry that was left out.
func (h *health) problem(err error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if len(h.problems) < mostProblems {
		h.problems = append(h.problems, err.Error())
	}
}

// clearProblems forgets the problems, before a new list.
func (h *health) clearProblems() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.problems = nil
}

// strange returns why etcd is another store; nil: it is not.
func (h *health) strange() error {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.state == store.Strange {
		return h.why
	}
	return nil
}

// usable returns why commits are refused; nil: they are not.
func (h *health) usable() error {
	h.mu.Lock()
	defer h.mu.Unlock()
	switch {
	case h.etcd.ctx.Err() != nil:
		return store.ErrClosed
	case h.state == store.Strange:
		return fmt.Errorf("nothing was changed: %w", h.why)
	case h.state == store.Away:
		return fmt.Errorf("the store %s does not answer (%w), last heard of %s; nothing was changed", h.etcd.name(), h.why, h.etcd.copy.Heard().Format(time.RFC3339))
	}
	return nil
}
