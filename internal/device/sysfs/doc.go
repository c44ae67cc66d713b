// Package sysfs writes the files that programs read below /sys/class: the device, its port, its GID table and its counters, with the
// kernel's names and formats.
//
// The tree is written once. Only the counters change, each rewritten in place, because libibverbs takes a new modification time
// of the device's directory for a new device. A tree belongs to one NIC and shows nothing of others.
package sysfs
