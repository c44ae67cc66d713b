package control

import (
	"errors"
	"strings"
	"sync"
	"testing"
	"time"

	"vrdma/internal/store"
	"vrdma/internal/tenant"
)

// A farStore is one that other hosts share, as far as a plane can tell.
type farStore struct {
	store.Memory
	mu      sync.Mutex
	health  store.Health
	changed chan struct{}
}

func newFarStore() *farStore {
	return &farStore{health: store.Health{State: store.InStep, Heard: time.Now()}, changed: make(chan struct{})}
}

func (s *farStore) Health() store.Health {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.health
}

func (s *farStore) Changed() <-chan struct{} {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.changed
}

func (s *farStore) Alive(string, []byte, time.Duration) func() { return func() {} }

func (s *farStore) set(h store.Health) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.health = h
	close(s.changed)
	s.changed = make(chan struct{})
}

func (h *host) hasEvent(text string) bool {
	events, _, _, _ := h.plane.journal.feed.after(0, 1<<30)
	for _, e := range events {
		if strings.Contains(e.Reason, text) {
			return true
		}
	}
	return false
}

// While the store is away or not what it was, nothing can be changed, nothing is pulled out, and
// events say so.
func TestRemoteAway(t *testing.T) {
	s := newFarStore()
	h := newHost(t, s)
	op := h.operator()
	mustApply(t, op, example(t))
	had := h.rack.has()
	for _, health := range []store.Health{
		{State: store.Away, Heard: time.Now().Add(-time.Minute), Why: errors.New("no route")},
		{State: store.Strange, Heard: time.Now(), Why: errors.New("it is another one")},
	} {
		s.set(health)
		eventually(t, "an event", func() bool { return h.hasEvent(health.Why.Error()) })
		_, err := Delete(op, []tenant.Key{nicKey("red", "web")}, true, false)
		if err == nil || !strings.Contains(err.Error(), "nothing can be changed now") || !strings.Contains(err.Error(), health.Why.Error()) {
			t.Errorf("%s: a change: %v", health.State, err)
		}
		if got := h.rack.has(); len(got) != len(had) {
			t.Errorf("%s: the rack has %v", health.State, got)
		}
	}
	s.set(store.Health{State: store.InStep, Heard: time.Now()})
	eventually(t, "an event", func() bool { return h.hasEvent("in step again") })
}

// Old and new daemons side by side: what a newer one wrote is refused, the old one keeps what
// it had, and does not write over it; all the rest goes on.
func TestNewerBeside(t *testing.T) {
	s := &store.Memory{}
	h := newHost(t, s)
	op := h.operator()
	mustApply(t, op, example(t))
	before := h.plane.World().NIC("red", "web")
	newer := store.Write{Key: "spec/nic/red/train/web", Value: []byte(`{"schema":2,"kind":"NIC","new":"things"}`)}
	if _, ok, err := s.Commit(nil, []store.Write{newer, {Key: keyGeneration, Value: []byte(`{"schema":2}`)}}); !ok || err != nil {
		t.Fatal(ok, err)
	}
	eventually(t, "a problem", func() bool { return len(h.plane.Problems()) > 0 })
	if got := h.plane.World().NIC("red", "web"); !same(got, before) {
		t.Errorf("the NIC is %v", got)
	}
	_, err := Apply(op, file("apiVersion: vrdma.io/v1\nkind: NIC\nmetadata: {name: web, tenant: red, labels: {x: y}}\nspec: {network: train, address: "+before.Spec.Addresses[0].String()+"}\n"), false)
	if err == nil || !strings.Contains(err.Error(), "newer vrdma") {
		t.Errorf("what a newer vrdma wrote was changed: %v", err)
	}
	mustApply(t, op, file("apiVersion: vrdma.io/v1\nkind: Tenant\nmetadata: {name: green}\nspec: {}\n"))
	list, _, _ := s.List(newer.Key)
	if len(list) != 1 || string(list[0].Value) != string(newer.Value) {
		t.Errorf("the newer entry is %s", list[0].Value)
	}
}
