// Package registry has the virtual NICs of a daemon. A NIC combines the parts of one virtual NIC:
//
//	           ┌── Device   nic.NIC: queue pairs, keys, GIDs, groups, limits
//	Table ── NIC ── Manager  rdmacm.CMA: identifiers, port spaces, service ids
//	           ├── Tree     what programs read below /sys/class
//	           └── Routes   how its host reaches others
//
// Handles, queue pair numbers, keys, GIDs, service IDs and groups belong to a NIC: two NICs can use equal ones independently. A NIC belongs
// to a network, and only NICs of one network reach each other, by GID.
//
// Table.Resolve is the only place that decides where a GID leads: to a NIC of this daemon, or to another host.
package registry
