package control

import (
	"maps"
	"slices"
	"sync"

	"vrdma.dev/vrdma/internal/tenancy/tenant"
)

// A nicState is what became of a NIC on this host.
type nicState struct {
	nic     *tenant.NIC // what was created last; nil: nothing exists
	network *tenant.Network
	status  Status
}

// nicStates are the states of the NICs of this host.
type nicStates struct {
	mu sync.Mutex
	of map[tenant.Key]*nicState // guarded by mu
}

// get returns a copy of a NIC's state.
func (n *nicStates) get(key tenant.Key) nicState {
	n.mu.Lock()
	defer n.mu.Unlock()
	if s := n.of[key]; s != nil {
		return *s
	}
	return nicState{}
}

func (n *nicStates) set(key tenant.Key, f func(*nicState)) {
	n.mu.Lock()
	defer n.mu.Unlock()
	s := n.of[key]
	if s == nil {
		s = &nicState{}
		n.of[key] = s
	}
	f(s)
}

func (n *nicStates) free(key tenant.Key) {
	n.mu.Lock()
	defer n.mu.Unlock()
	delete(n.of, key)
}

// keys are the NICs that have a state, sorted.
func (n *nicStates) keys() []tenant.Key {
	n.mu.Lock()
	defer n.mu.Unlock()
	return slices.SortedFunc(maps.Keys(n.of), tenant.Key.Compare)
}

// provisioned are the NICs that exist.
func (n *nicStates) provisioned() (keys []tenant.Key) {
	n.mu.Lock()
	defer n.mu.Unlock()
	for key, s := range n.of {
		if s.nic != nil {
			keys = append(keys, key)
		}
	}
	return keys
}

// failed reports whether a NIC could not be created or removed.
func (n *nicStates) failed() bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	for _, s := range n.of {
		if s.status.State == Failed {
			return true
		}
	}
	return false
}
