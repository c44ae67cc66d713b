// Package vmnet tests the network of virtual machines: guests with stock kernels, whose network cards are NICs
// of a daemon.
package vmnet
