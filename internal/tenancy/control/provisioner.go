package control

import (
	"vrdma.dev/vrdma/internal/net/overlay"
	"vrdma.dev/vrdma/internal/tenancy/tenant"
)

// A Provisioner creates and removes the NICs of this host. Its methods are not called at the same time.
type Provisioner interface {
	// Put creates a NIC, or changes an existing one to what is declared. It is called for a NIC that is new or has
	// changed, or whose network has changed.
	Put(t *tenant.Tenant, n *tenant.Network, c *tenant.NIC) error
	// Remove removes NICs, all at once, and returns why some still exist. If one is in use, which is a *tenant.InUse,
	// all stay, unless force is set. Removing a NIC that does not exist is no error.
	Remove(keys []tenant.Key, force bool) map[tenant.Key]error
	// Enforce applies the policies, shares and quotas of a world. It is called after every change, before new NICs are
	// created.
	Enforce(w *tenant.World)
	// Connect sets which host has which address, in the networks of which this host has members. It may be called while
	// another method runs.
	Connect(m *overlay.Map) error
}

// NICInfo is implemented by a Provisioner that knows the users and sockets of NICs.
type NICInfo interface {
	// Users are the users of a NIC, one text each.
	Users(k tenant.Key) []string
	// Socket is the path of the NIC's listener; "": there is none.
	Socket(k tenant.Key) string
}

// FaultInfo is implemented by a Provisioner that knows what Faults have hit.
type FaultInfo interface {
	// FaultHits is how often the rules of a Fault have hit NICs of this host, and how many NICs it applies to.
	FaultHits(k tenant.Key) (hits uint64, nics int)
}

// A CounterKeeper is a Provisioner whose NICs keep their counters when they move to another host.
type CounterKeeper interface {
	// Counted returns a NIC's counters, those of previous hosts included; "": there are none, or the NIC is not on this
	// host.
	Counted(k tenant.Key) string
	// Recount restores the counters that Counted returned, on this host or another. moved: it was another host, whose
	// counters include what the NIC counted here before.
	Recount(k tenant.Key, counted string, moved bool)
}

// NoProvisioner accepts everything and does nothing.
type NoProvisioner struct{}

func (NoProvisioner) Put(*tenant.Tenant, *tenant.Network, *tenant.NIC) error { return nil }
func (NoProvisioner) Remove([]tenant.Key, bool) map[tenant.Key]error         { return nil }
func (NoProvisioner) Enforce(*tenant.World)                                  {}
func (NoProvisioner) Connect(*overlay.Map) error                             { return nil }
