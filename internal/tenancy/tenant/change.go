package tenant

// A Change puts and deletes objects of a World. A put object is new, or replaces the one with the same key. A Change is
// applied as a whole or not at all.
type Change struct {
	Put    []Object
	Delete []Key
	// Force also deletes the objects that refer to a deleted one: all objects of a tenant, the NICs of
	// a network and the policies about it. A policy that names a deleted NIC stays unchanged, so that
	// it allows nothing new. The name matches no NIC until one is created with it.
	Force bool
}

// An Effect is what a Change did to one object.
type Effect struct {
	Key Key
	Old Object // nil if it is new
	New Object // nil if it was deleted; Old itself if it is as it was
}

// What is one word: created, changed, unchanged or deleted.
func (e Effect) What() string {
	switch {
	case e.Old == nil:
		return "created"
	case e.New == nil:
		return "deleted"
	case e.Old == e.New:
		return "unchanged"
	}
	return "changed"
}

// Changed reports whether the object was created, changed or deleted.
func (e Effect) Changed() bool { return e.Old != e.New }

// Rand is the source of allocated VNIs, such as *rand.Rand of math/rand/v2.
type Rand interface {
	Uint32N(n uint32) uint32
}
