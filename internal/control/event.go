package control

import (
	"time"

	"vrdma/internal/tenant"
)

// A Verb is what happened.
type Verb string

const (
	EventApplied      Verb = "applied"
	EventDeleted      Verb = "deleted"
	EventRefused      Verb = "refused" // a change, a connection, an operation
	EventRevoked      Verb = "revoked"
	EventCapped       Verb = "capped" // held up by a cap
	EventQuota        Verb = "quota"
	EventConnected    Verb = "connected"
	EventDisconnected Verb = "disconnected"
	EventOpened       Verb = "opened" // a NIC, by a program
	EventClosed       Verb = "closed"
	EventFailed       Verb = "failed" // the rack or the store could not
	EventReady        Verb = "ready"
	EventBound        Verb = "bound" // to a workload, by an engine
	EventUnbound      Verb = "unbound"
	EventWarned       Verb = "warned" // something keeps a container's programs from the NIC
)

// An Event is something that happened to an object, or to a connection of a NIC.
type Event struct {
	Sequence uint64     `json:"sequence"` // counts up; Record sets it
	Time     time.Time  `json:"time"`     // Record sets it if it is zero
	Verb     Verb       `json:"verb"`
	Object   tenant.Key `json:"object,omitzero"`
	// Peer is the other end of a connection, as far as Object's tenant may know it.
	Peer   string `json:"peer,omitempty"`
	Reason string `json:"reason,omitempty"`
	By     Actor  `json:"by,omitzero"`
	// Missed is how many events of this verb and object were left out before this one,
	// because there were too many.
	Missed uint64 `json:"missed,omitempty"`
}

// An Actor is who did it; the zero Actor is the daemon itself.
type Actor struct {
	Pid     int    `json:"pid,omitempty"`
	UID     int    `json:"uid"` // -1: not known
	Program string `json:"program,omitempty"`
}
