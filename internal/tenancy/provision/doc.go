// Package provision creates and removes the NICs of a daemon while it runs.
//
//	tenant.NIC ── Put ──▶ hostedNIC ─┬─ nic.NIC, rdmacm.CMA      the device and its connection manager
//	                                 ├─ registry.NIC in the Table its network: which NICs reach each other (network.go)
//	                                 ├─ engine.Add               the loop serves it
//	                                 ├─ a listener               directory, socket, allowed users (listener.go)
//	                                 └─ a namespacePort or a switchPort: its connection to a container or a virtual machine
//
// A NIC is called TENANT/NAME, and its network TENANT/NETWORK, which is unique. The default NIC is the simplest case:
// it has the daemon's own listener and no tenant.
//
// A NIC's directory is all that a program needs, and all that a container mounts. An unused NIC holds one descriptor,
// its socket. The shared objects in the directory are hard links to the daemon's: mount the directory read-only.
//
// The memory and objects of programs at a tenant's NICs are charged to the tenant (quota.go). The package compiles the
// policies of a world for the NICs (rules.go), and passes shares and caps to the loop (shares.go).
//
// The methods of a Provisioner are not called at the same time, except those that say so.
package provision
