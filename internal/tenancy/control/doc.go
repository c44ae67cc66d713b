// Package control is the control plane of one daemon. It holds the declared world, changes it for authorised callers,
// makes the Provisioner follow, and records events.
//
//	vrdma apply, get, delete, events …   (client.go)
//	   │ one request, JSON               │ replies
//	   ▼                                 │
//	Plane.Serve ── the caller's role, by the kernel's credentials: operator, administrator, reader
//	   │ Change                          ▲
//	   ▼                                 │ watch, events
//	World ──next World──▶ store.Commit ──▶ reconcile ──▶ Provisioner: Put, Remove, Enforce
//
// A Plane consists of parts with their own state and lock:
//
//	snapshots     the newest state of the store, and commits
//	storeHealth   whether that is in step with the store
//	registration  this host's entry in a store that hosts share
//	placements    which host has which NIC
//	overlayMap    which host has which address, for the Provisioner
//	reconciler    makes the Provisioner's NICs those that are declared; nicStates are the results
//
// The store has the truth. A change is checked against the world of one revision of the store, and committed on the
// condition that the store still has that revision. Otherwise it is checked again. One commit has everything that a
// change writes: the objects, and the addresses and VNIs that were allocated for them. So no change is half visible,
// and no allocation outlives its object.
//
// The Provisioner follows. If it fails for one NIC, that is in the NIC's status and is tried again, and the other NICs
// are not affected. A NIC is removed from the Provisioner before it is deleted from the store: a NIC in use stays in
// both, unless the caller forces the deletion.
//
// The store's contents are not trusted. An entry that is no object, or does not fit the others, is left out and
// reported, and the rest is used.
//
// Every change is an event with its author. So is what the data path reports: connections refused and revoked, caps and
// quotas reached. The last few thousand events are in memory, and all are in the daemon's log.
package control
