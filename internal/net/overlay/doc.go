// Package overlay carries virtual networks between hosts: the map of addresses to hosts, and the encapsulation.
//
// A Map is immutable and says which host has an address of a network. The control plane makes a new Map after each change;
// the loop reads it. The encapsulation is standard VXLAN (RFC 7348): Ethernet, IP, UDP and RoCEv2 inside UDP. A Linux
// machine with a vxlan device and rxe is therefore a full member.
//
// The package must never admit a packet whose sending host is not a member of the network, or does not have the inner
// source address.
package overlay
