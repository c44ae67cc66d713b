package ib

import "fmt"

// A NetworkID identifies the network that an IP address belongs to. Two networks can use the same address
// for different ports.
//
//	0              the hosts' own network
//	1 … 2^24-1     a virtual network; the number is its VNI
//	2^24 …         a network namespace in which a NIC has sockets of its own
type NetworkID uint32

// HostNetwork is the hosts' own network.
const HostNetwork NetworkID = 0

const firstNamespace NetworkID = 1 << 24 // a VNI has 24 bits

// VirtualNetwork returns the ID of the network with a VNI.
func VirtualNetwork(vni uint32) NetworkID { return NetworkID(vni) }

// NamespaceNetwork returns the ID of the i-th network namespace, counted from 0.
func NamespaceNetwork(i uint32) NetworkID { return firstNamespace + NetworkID(i) }

// IsVirtual reports whether n is a virtual network.
func (n NetworkID) IsVirtual() bool { return n != HostNetwork && n < firstNamespace }

// IsNamespace reports whether n is a network namespace.
func (n NetworkID) IsNamespace() bool { return n >= firstNamespace }

// VNI returns the VNI of a virtual network.
func (n NetworkID) VNI() uint32 { return uint32(n) }

// String returns the name of the network for logs.
func (n NetworkID) String() string {
	switch {
	case n == HostNetwork:
		return "host"
	case n.IsVirtual():
		return fmt.Sprintf("vni %d", uint32(n))
	}
	return fmt.Sprintf("namespace %d", uint32(n-firstNamespace))
}
