package policy

import (
	"fmt"
	"time"

	"vrdma.dev/vrdma/internal/ib"
)

// While the store is away, changes of rules do not arrive. So a policy can bound the age of the rules for new connections
// of its NICs (maxStaleness). Existing connections stay.

// SetAge sets how old the rules may be. Any goroutine may call it.
func (r *Rules) SetAge(age time.Duration) {
	for _, n := range r.networks {
		if n.patience != 0 {
			n.age.Store(int64(age))
		}
	}
}

// stale reports whether the rules may be older than a member's policies allow.
func (n *network) stale(m *member) bool {
	if n.patience == 0 {
		return false
	}
	most := n.profiles[m.profile].patience
	return most != 0 && n.age.Load() > int64(most)
}

// staleness says that a connection is refused because the rules may be too old; "": it is not.
func (g *Guard) staleness(peer ib.GID) string {
	n := g.net
	about := []int32{g.nic}
	if p, ok := n.byAddress[peer]; ok && p != g.nic {
		about = append(about, p)
	}
	for _, m := range about {
		if n.stale(&n.members[m]) {
			return fmt.Sprintf("the store has not answered for %v, and a policy about NIC %s says maxStaleness %v",
				time.Duration(n.age.Load()).Round(time.Second), n.input.nics[m].Key().Path(), n.profiles[n.members[m].profile].patience)
		}
	}
	return ""
}

// shorter is the shorter of two spans; 0 is none.
func shorter(a, b time.Duration) time.Duration {
	if a == 0 || b != 0 && b < a {
		return b
	}
	return a
}
