// Package vswitch is the switch of a daemon: virtual networks as Ethernet, for guests and for containers that
// have an interface in one.
//
//	guest ── vhost-user ──▶ Port ─┐                                ┌─▶ Port ── vhost-user ──▶ guest
//	                              ├─ checks, policy, Network.forward ─┼─▶ Port ── tap ──▶ container
//	container ── tap ─────▶ Port ─┘        │                       └─▶ Sender ── VXLAN ──▶ other hosts
//	other hosts ── VXLAN ── Switch.Receive ┘  ARP, ND, DHCP: answered here, never sent on
//
// A Port is where a NIC is plugged in. It has the NIC's MAC and addresses, and what it sends has them, or is
// dropped. Nothing is learnt and no question is flooded: who is where is declared, so the switch answers ARP
// and neighbour discovery itself. It also is the network's DHCP server.
//
// A frame from guest to guest is copied once, from the sender's memory to the receiver's. Only its first
// bytes, which decide where it goes, are copied before: the sender may change the others at any time, and these
// decide nothing. Large segments and checksums that are left out (offloads) travel as they are where both ends
// know them; offload.go makes ordinary frames of them where one does not.
//
// Each transmit ring has a goroutine (package vhostuser), which brings a frame all the way to its receiver. A
// receiver that has no buffers has frames wait for it, boundedly (outlet.go); the sender never waits. A port
// with a rate has its transmit ring left alone until it may send again.
//
// To policy a sender of Ethernet is what a Linux machine is: see allow.go.
//
// Locks: Switch.mu guards who is plugged in; forwarding reads copies. A goroutine that forwards holds a
// sender's ring, then one outlet.mu, then the receiver's ring.
package vswitch
