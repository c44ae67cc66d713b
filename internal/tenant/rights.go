package tenant

import (
	"slices"
)

// A Caller is somebody who wants something, as the kernel says.
type Caller struct {
	// Operator may do everything: whose daemon it is, and root.
	Operator bool
	UID      int
	GIDs     []int // all of the process's groups
}

// Admits reports whether the caller is one of the users or in one of the groups. An empty list
// of users and groups admits nobody.
func (w *Who) Admits(c Caller) bool {
	return slices.Contains(w.UIDs, c.UID) || slices.ContainsFunc(w.GIDs, func(gid int) bool { return slices.Contains(c.GIDs, gid) })
}

// May says why somebody may not make a change; nil if they may. The operator may make every one.
// The administrators of a tenant may put and delete its NICs and policies. They may not give a
// NIC a guarantee or the latency class, which take from other tenants.
func (w *World) May(who Caller, c Change) error { panic("not yet") }

// MayRead reports whether somebody may see an object of this world: the operator everything, the
// administrators of a tenant all that is the tenant's, others the NICs that name them as users
// who may open them, and the networks of those.
func (w *World) MayRead(who Caller, o Object) bool { panic("not yet") }
