package rdmacm

import "vrdma.dev/vrdma/internal/cm"

// The daemon may send the results of Query and QPAttr for an ID to a client in advance. It revokes them before any change of the data that
// these two read becomes visible:
//
//   - by a command: package ucma calls Changed for every command that is not a query
//   - by a message or a deadline: the state of a connection changes (changed)
//   - by an operation that ends after its command: EndResolve
//   - when the rules do not allow the connection any more: revoke
//   - when the ID is destroyed or moves to another channel: destroy, Migrate
//   - when the addresses or the MTU of the NIC change: Readdressed

// Ahead is where a client checks whether the results sent in advance are still valid.
type Ahead interface {
	// Revoke invalidates the results for an ID.
	Revoke(id uint32)
	// SetEvents sets the number of waiting events.
	SetEvents(n int)
}

// Foresee makes the channel report changes to a; nil stops that. It runs on the loop.
func (ch *Channel) Foresee(a Ahead) {
	if ch.ahead = a; a != nil {
		a.SetEvents(len(ch.events))
	}
}

// Changed reports that Query or QPAttr may return other results from now on.
func (id *ID) Changed() {
	if a := id.ch.ahead; a != nil {
		a.Revoke(id.Name)
	}
}

// Readdressed reports that the NIC has other addresses, or another MTU. It runs on the loop.
func (a *CMA) Readdressed() {
	for c := range a.clients {
		for _, id := range c.ids.items {
			id.Changed()
		}
	}
}

func changed(c *cm.Conn) {
	if id, ok := c.Owner.(*ID); ok {
		id.Changed()
	}
}
