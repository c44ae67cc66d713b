// Package control is the control plane of one daemon: it holds the world that was declared,
// changes it on behalf of those who may, has the rack make it so, and remembers what happened.
//
//	vrdma apply, get, delete, events …   (client.go)
//	   │ one request, JSON               │ replies
//	   ▼                                 │
//	Plane.Serve ── who is it? (operator, administrator, reader: what the kernel says)
//	   │ Change                          ▲
//	   ▼                                 │ watch, events
//	World ──next World──▶ store.Commit ──▶ reconcile ──▶ Rack: Put, Remove, Enforce
//
// The store has the truth. A change is checked against the world that the store had at one
// revision and committed on the condition that it still has it; if not, it is checked again.
// One commit carries all that a change writes: the objects, the addresses and VNIs that were
// allocated for them. So nothing is half visible, and nothing stays allocated for something
// that is not there.
//
// The rack follows. What it cannot do for one NIC is in that NIC's status, is tried again, and
// stops no other. Before a NIC is deleted the rack lets it go: a NIC that is in use stays, in
// the rack and in the store, unless it is forced.
//
// What came into the store some other way is not believed: an entry that is no object, or does
// not fit the others, is left out and reported; the rest is served.
//
// Every change is an event with who made it; so is what the data path reports (connections
// refused and revoked, caps and quotas met). Events are in memory, the last few thousand, and
// in the daemon's log.
package control
