// Package abitext spells the kernel's ABI for people: flags, states and types by the
// names that everybody knows, addresses and GUIDs as sysfs prints them, and whole
// commands as a trace shows them.
//
// It is slow (it reflects) and runs only where somebody reads the result. It decides
// nothing; what a number means to the device is said in package nic.
package abitext
