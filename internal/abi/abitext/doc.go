// Package abitext formats the kernel's ABI for people: flags, states and types by their usual names, addresses and GUIDs as in
// sysfs, and whole commands as a trace shows them.
//
// It is slow, because it uses reflection, and runs only when its output is displayed. It contains no rules of the device; package
// nic has those.
package abitext
