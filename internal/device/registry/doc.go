// Package registry is the virtual NICs of a daemon. A NIC joins what makes up one of them:
//
//	           ┌── Device   nic.NIC: queue pairs, keys, GIDs, groups, limits
//	Table ── NIC ── Manager  rdmacm.CMA: identifiers, port spaces, service ids
//	           ├── Tree     what programs read below /sys/class
//	           └── Routes   how its host reaches others
//
// Handles, queue pair numbers, keys, GIDs, service ids and groups belong to a NIC: equal
// ones of two NICs have nothing to do with each other. NICs are also in a network, and
// only those of one network reach each other, by GID.
//
// Table.Resolve is the one place where a GID becomes a way: to a NIC of this daemon, or to
// another host. It must not be decided anywhere else what a GID means.
package registry
