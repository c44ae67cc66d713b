// Package tunnel carries the datagrams of encrypted networks between hosts with WireGuard, in the daemon's process and
// without privileges. The protocol, its keys, timers and replay window are those of package device of
// golang.zx2c4.com/wireguard; this package contains no cryptography.
//
//	engine's loop ── Send ──▶ ring ──▶ inside.Read ──▶ ┌────────────┐ ──▶ outside.Send ──▶ UDP 51820
//	                                                  │ WireGuard  │
//	engine's loop ◀─ Receive ◀ ring ◀─ inside.Write ◀─ │ (a device) │ ◀── outside.Receive ◀── UDP
//	        ▲                                         └────────────┘
//	        └── Descriptor: an eventfd                       ▲
//	control ── Follow(overlay.Map) ── peers ─────────────────┘
//
// The inner packet is the VXLAN datagram in an IPv6 and a UDP header (packet.go), the same as a Linux machine sends from a
// vxlan device over a WireGuard device. A host's inner address is derived from its public key (overlay.TunnelAddr), and
// WireGuard accepts only this source address from that host. So the source address proves the sender.
//
// The peers are the hosts that share an encrypted network with this one. Datagrams from other addresses are dropped before
// any computation.
//
// The loop never waits. Two rings of fixed size, each with one writer and one reader, connect it with WireGuard's
// goroutines (ring.go). The number of packets in WireGuard's queues is limited for each peer, to a small number while
// there is no session with the peer (peers.go).
//
// The package must never send anything unencrypted, pass on a packet whose source WireGuard has not checked, or let one
// peer block the loop or the other peers.
package tunnel
