// Package provision is where a daemon's NICs are put in and pulled out while it runs.
//
//	tenant.NIC ── Put ──▶ slot ─┬─ nic.NIC, rdmacm.CMA     the device and its connection manager
//	                            ├─ registry.NIC in the Table   its network: who reaches whom (network.go)
//	                            ├─ engine.Add              the loop serves it
//	                            └─ a door                  directory, socket, who may open (door.go)
//
// A NIC is called TENANT/NAME, and its network TENANT/NETWORK, which no other tenant has. The
// default NIC is the simplest case: it has the daemon's own door, and is nobody's.
//
// A NIC's directory is all that a program needs, and all that is mounted into a container. While
// nobody uses the NIC there is one descriptor, the socket's. The shared objects are hard links to
// the daemon's: mount the directory read-only.
//
// What the programs of a tenant's NICs hold is charged to the tenant (quota.go). The policies of a
// world are compiled here and given to the NICs (rules.go), and the loop is told of shares and
// caps (shares.go).
//
// The methods of a Rack are not called at the same time, except those that say so.
package provision
