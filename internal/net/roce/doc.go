// Package roce carries the transport's bursts to and from other hosts. It converts bursts to RoCEv2
// packets and back, and sends and receives the packets through UDP sockets in batches.
//
//	engine ── Port.Send(burst) ──▶ Cutter ──▶ ┌───────┐ Flush   ┌──────┐
//	                                          │ queue │ ──────▶ │ Bind │ ──▶ UDP, or the
//	engine ◀─ Receiver.Receive ◀── Joiner ◀── ICRC ◀─────────── │      │ ◀── fake network
//	                  │                        Port.Poll        └──────┘
//	                 Tap ──▶ capture file (local bursts too)
//
// A Port sends between IP addresses that its caller chooses; it does not map GIDs to addresses. The
// GIDs of a received burst are the addresses in its IP header, as RoCEv2 defines.
//
// A Cutter splits a burst at the path MTU into packets that one call can send (GSO). A Joiner combines
// packets that one call received (GRO) into a burst. Both are pure. A Bind moves datagrams: UDP through
// sockets, FakeNet in memory. A Port combines these parts and belongs to one engine loop. Nothing here
// is locked, blocks, or allocates when packets move.
//
// The package must never pass data from the network to the transport before it has checked lengths and
// ICRC, send anything without a call of its owner, or let a packet of one peer cost more than its own
// handling.
package roce
