package events

import (
	"time"

	"vrdma.dev/vrdma/internal/budget"
	"vrdma.dev/vrdma/internal/client/credentials"
	"vrdma.dev/vrdma/internal/tenancy/tenant"
)

// A Verb names what happened.
type Verb string

const (
	Applied      Verb = "applied"
	Deleted      Verb = "deleted"
	Refused      Verb = "refused" // the daemon refused a change, a connection or an operation
	Revoked      Verb = "revoked"
	Capped       Verb = "capped"   // a cap begins to delay it
	Uncapped     Verb = "uncapped" // no cap delays it any more
	Quota        Verb = "quota"
	Connected    Verb = "connected"
	Disconnected Verb = "disconnected"
	Opened       Verb = "opened" // a program opened a NIC
	Closed       Verb = "closed"
	Failed       Verb = "failed" // the daemon or the store could not do it
	Ready        Verb = "ready"
	Bound        Verb = "bound" // a container engine bound a NIC to a workload
	Unbound      Verb = "unbound"
	Warned       Verb = "warned" // a container's programs cannot use the NIC fully
)

// Warns reports whether an operator has to know: something failed, was refused or was ended.
func (v Verb) Warns() bool {
	switch v {
	case Failed, Refused, Revoked, Quota, Warned:
		return true
	}
	return false
}

// An Event is something that happened to an object or to a connection of a NIC.
type Event struct {
	Sequence uint64     `json:"sequence"` // counts up from 1; the journal sets it
	Time     time.Time  `json:"time"`     // the journal sets it if it is zero
	Verb     Verb       `json:"verb"`
	Object   tenant.Key `json:"object,omitzero"`
	// Peer is the other end of a connection, as far as Object's tenant may know it.
	Peer   string `json:"peer,omitempty"`
	Reason string `json:"reason,omitempty"`
	By     Actor  `json:"by,omitzero"`
	// Missed counts the events of this verb and object that the journal dropped before this one because they came too fast.
	Missed uint64 `json:"missed,omitempty"`
}

// An Actor is the process that caused an event. The zero Actor is the daemon itself.
type Actor struct {
	Pid     int    `json:"pid,omitempty"`
	UID     int    `json:"uid"` // -1: not known
	Program string `json:"program,omitempty"`
}

// A Sink records events. Record may be called by any goroutine, including the engine's loop, and returns at once.
type Sink interface{ Record(Event) }

// Discard drops every event.
var Discard Sink = discard{}

type discard struct{}

func (discard) Record(Event) {}

// Limit returns the event for a limit that an account has reached.
func Limit(e *budget.Error) Event {
	event := Event{Verb: Quota, Reason: e.Error()}
	if e.Tenant != "" {
		event.Object = tenant.Key{Kind: tenant.KindTenant, Name: e.Tenant}
	}
	return event
}

// By returns the process as an Actor.
func By(who *credentials.Caller) Actor {
	return Actor{UID: who.UID, Pid: who.Pid, Program: who.Program}
}

// OnlyRDMA is the reason of a warning about a container that has no interface with the address of its NIC.
const OnlyRDMA = "it has no interface with the NIC's address: only RDMA has the address"

// NoInterface returns the event for a container that has no interface with the address of its NIC.
func NoInterface(nic tenant.Key, why error) Event {
	return Event{Verb: Warned, Object: nic, Reason: OnlyRDMA + ": " + why.Error()}
}
