// Package sysfs writes what programs read below /sys/class: the device, its port,
// its GID table and its counters, with the kernel's file names and formats.
//
// The tree is written once; only the counters change, each rewritten in place, because a
// new modification time of the device's directory means a new device to libibverbs. A
// tree belongs to one NIC and shows nothing of any other.
package sysfs
