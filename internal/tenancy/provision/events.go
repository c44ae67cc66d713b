package provision

import (
	"vrdma.dev/vrdma/internal/cm/rdmacm"
	"vrdma.dev/vrdma/internal/device/nic"
	"vrdma.dev/vrdma/internal/events"
	"vrdma.dev/vrdma/internal/tenancy/tenant"
)

// denied is the event for a policy's refusal.
func denied(key tenant.Key, of nic.Denial) events.Event {
	e := events.Event{
		Verb: events.Refused, Object: key, Peer: of.Peer.Addr().String(), Reason: of.What.String() + ": " + of.Why,
		By: events.Actor{UID: of.UID, Pid: of.Pid, Program: of.Program},
	}
	if of.Pid == 0 { // no process of this host is involved
		e.By.UID = -1
	}
	if of.What == nic.Revoked {
		e.Verb, e.Reason = events.Revoked, of.Why
	}
	return e
}

// connected is the event for a connection that was made or has ended.
func connected(key tenant.Key, of rdmacm.Notice) events.Event {
	e := events.Event{
		Verb: events.Connected, Object: key, Peer: of.Remote.String(), Reason: "to " + of.Remote.String(),
		By: events.Actor{UID: of.UID, Pid: of.Pid, Program: of.Program},
	}
	if of.Passive {
		e.Reason = "at " + of.Local.String()
	}
	if of.Ended {
		e.Verb = events.Disconnected
	}
	return e
}
