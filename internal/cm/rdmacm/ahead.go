package rdmacm

import "vrdma.dev/vrdma/internal/cm"

// A client may be told ahead what it would ask about an ID: Query and QPAttr. That is revoked
// whenever something changes that these two look at, before anybody sees the change:
//
//   - by a command: package ucma calls Changed for every one that does not only ask
//   - by a message or a deadline: a connection that has another state (changed)
//   - by what ends later than its command: EndResolve
//   - when the rules do not allow the connection any more: revoke
//   - when the ID goes, or goes to another channel: destroy, Migrate
//   - when the addresses or the MTU of the NIC change: Readdressed

// Ahead is where a client sees whether what it was told is still true.
type Ahead interface {
	// Revoke takes back what was said about an ID.
	Revoke(id uint32)
	// SetEvents says how many events wait.
	SetEvents(n int)
}

// Foresee has the channel tell a when something changes; nil: nobody. It runs on the loop.
func (ch *Channel) Foresee(a Ahead) {
	if ch.ahead = a; a != nil {
		a.SetEvents(len(ch.events))
	}
}

// Changed says that Query or QPAttr may answer otherwise from now on.
func (id *ID) Changed() {
	if a := id.ch.ahead; a != nil {
		a.Revoke(id.Name)
	}
}

// Readdressed says that the NIC has other addresses, or another MTU. It runs on the loop.
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
