// Package tunnel carries datagrams of encrypted networks between hosts: WireGuard, in the daemon's
// own process and without privileges. The protocol, its keys, timers and replay window are those of
// golang.zx2c4.com/wireguard's package device; nothing here encrypts anything.
//
//	engine's loop ── Send ──▶ ring ──▶ inside.Read ──▶ ┌────────────┐ ──▶ outside.Send ──▶ UDP 51820
//	                                                  │ WireGuard  │
//	engine's loop ◀─ Receive ◀ ring ◀─ inside.Write ◀─ │ (a device) │ ◀── outside.Receive ◀── UDP
//	        ▲                                         └────────────┘
//	        └── Descriptor: an eventfd                       ▲
//	control ── Follow(overlay.Map) ── peers ─────────────────┘
//
// What travels inside is the VXLAN datagram in an IPv6 and a UDP header (packet.go): what a Linux
// machine sends that has a vxlan device over a WireGuard device. A host's address there follows from
// its public key (overlay.TunnelAddr) and is the only one that WireGuard lets a packet of that host
// have as source. So who has sent what comes out is certain: the holder of the private key.
//
// Peers are the hosts that share an encrypted network with this one; datagrams from other addresses
// are dropped before anything is computed.
//
// The loop never waits: between it and WireGuard's goroutines lie two rings of a fixed size, each with
// one writer and one reader (ring.go). Of what WireGuard has been given and has not sent yet a peer
// may have a bounded amount, a small one while there is no session with it (peers.go).
//
// What this package must never do: send anything in the clear, hand on a packet with a source that
// WireGuard has not checked, or let one peer's trouble hold up the others or the loop.
package tunnel
