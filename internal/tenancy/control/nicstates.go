package control

import (
	"maps"
	"slices"
	"sync"

	"vrdma.dev/vrdma/internal/tenancy/tenant"
)

// A slot is a NIC of this host, as far as the rack has it.
type nicState struct {
	nic     *tenant.NIC // what was put in last; nil: nothing is in
	network *tenant.Network
	status  Status
}

// nicStates are the states of the NICs of this host.
type nicStates struct {
	mu sync.Mutex
	of map[tenant.Key]*nicState // guarded by mu
}

// slot is a copy of a NIC's slot.
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

// occupied are the keys of all slots.
func (n *nicStates) keys() []tenant.Key {
	n.mu.Lock()
	defer n.mu.Unlock()
	return slices.SortedFunc(maps.Keys(n.of), tenant.Key.Compare)
}

// racked are the keys of the NICs that are in the rack.
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
