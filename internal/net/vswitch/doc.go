// Package vswitch is the Ethernet switch of a daemon: it connects virtual machines, and containers that have an interface in
// a virtual network.
//
//	guest ── vhost-user ──▶ Port ─┐                                ┌─▶ Port ── vhost-user ──▶ guest
//	                              ├─ checks, policy, Network.forward ─┼─▶ Port ── tap ──▶ container
//	container ── tap ─────▶ Port ─┘        │                       └─▶ Sender ── VXLAN ──▶ other hosts
//	other hosts ── VXLAN ── Switch.Receive ┘  ARP, ND, DHCP: answered here, never sent on
//
// A Port connects a NIC with the switch. It has the NIC's MAC and addresses, and drops frames with other source addresses.
// The switch neither learns addresses nor floods requests: locations are declared, so it answers ARP and neighbour discovery
// itself. It is also the network's DHCP server.
//
// A frame from guest to guest is copied once, from the sender's memory to the receiver's. Only its head, which decides the
// destination, is copied before that, because the sender can change its memory at any time. Large segments and incomplete
// checksums (offloads) pass unchanged if both sides support them; otherwise offload.go converts them to ordinary frames.
//
// Each transmit ring has a goroutine (package vhostuser), which delivers a frame to its receiver. Frames for a receiver
// without buffers wait in a bounded queue (outlet.go); the sender never waits. The switch does not read the transmit ring of a
// port that is over its rate.
//
// A guest is attached to its port while its rings run. While it migrates on this host, its copy is connected, too: the port takes it when
// the original has stopped.
//
// Policy treats a sender of Ethernet frames like a Linux machine: see allow.go.
//
// Locks: Switch.mu guards the set of ports; forwarding reads copies. A forwarding goroutine locks a sender's ring, then one
// outlet.mu, then the receiver's ring.
package vswitch
