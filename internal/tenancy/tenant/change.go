package tenant

// A Change is what somebody wants of a World: objects put (new ones, or in place of those of the
// same key), and objects deleted. It happens as a whole or not at all.
type Change struct {
	Put    []Object
	Delete []Key
	// Force deletes what refers to a deleted object too: everything of a tenant, the NICs of a
	// network and the policies about it. A policy that names a deleted NIC stays as it is, so
	// that nothing is allowed that was not: the name then stands for no NIC, until there is one.
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

// Changed reports whether there is something to do about it.
func (e Effect) Changed() bool { return e.Old != e.New }

// Rand is where allocated VNIs come from: *rand.Rand of math/rand/v2.
type Rand interface {
	Uint32N(n uint32) uint32
}
