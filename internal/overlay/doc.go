// Package overlay is what virtual networks look like between hosts: who is where, and what is
// around a packet on the way there.
//
// A Map says which host has an address of a network, at one moment. The control plane makes one
// whenever something has changed; the loop asks it, and never changes it. What is around a packet is
// standard VXLAN: Ethernet, IP, UDP and RoCEv2 inside of UDP, so that a Linux machine with a vxlan
// device and rxe on it is a full member.
//
// What this package must never do: let anything into a network that does not come from a host that is
// a member of it, or from an address that the host does not have.
package overlay
