// Package roce is the way to other hosts: it turns bursts of the transport into RoCEv2
// packets and back, and moves those through UDP sockets in batches.
//
//	engine ── Port.Send(burst) ──▶ Cutter ──▶ ┌───────┐ Flush   ┌──────┐
//	                                          │ queue │ ──────▶ │ Bind │ ──▶ UDP, or the
//	engine ◀─ Receiver.Receive ◀── Joiner ◀── ICRC ◀─────────── │      │ ◀── fake network
//	                  │                        Port.Poll        └──────┘
//	                 Tap ──▶ capture file (local bursts too)
//
// A Port sends between the IP addresses that it is told: which addresses a GID leads to is
// not known here. The GIDs of what arrives are the addresses in its IP header, as RoCEv2 has
// it.
//
// A Cutter cuts a burst at the path MTU into packets that can leave in one call (GSO), a
// Joiner makes one burst of packets that arrived in one call (GRO); both are pure. A Bind
// moves datagrams: UDP does so through sockets, FakeNet in memory. A Port puts them
// together and belongs to one engine loop; nothing here is locked, blocks or allocates
// when packets move.
//
// What this package must never do: hand the transport anything from the network before
// lengths and ICRC were checked, send what it was not asked to, or let one peer's packets
// cost more than their own handling.
package roce
