// Package wire is the formats of RoCEv2: what stands in a UDP datagram to port 4791,
// byte for byte as the Linux kernel's rxe and hardware NICs send it (IBA volume 1,
// chapter 9 and annex A17), and the management datagrams (MADs) that the connection
// manager exchanges in it (chapters 12 and 13). Two things are vrdma's own and for vrdma
// hosts only: the MAD by which they recognise each other (hello.go), and bytes that make
// packets of one message equally long (filler.go).
//
//	┌──────────┬─────┬─────┬──────────────────────────┬─────────┬─────┬──────┐
//	│ IPv4 or  │ UDP │ BTH │ DETH, RETH, AtomicETH,   │ payload │ pad │ ICRC │
//	│ IPv6     │     │     │ AETH, ImmDt, … by opcode │         │     │      │
//	└──────────┴─────┴─────┴──────────────────────────┴─────────┴─────┴──────┘
//	                  └────────────────── Packet ─────────────────────────┘
//
// A header is a named byte slice with a getter and a setter a field; nothing here
// allocates. Which headers an opcode has is data (the table of opcode.go). Parse checks
// every length once, so that the accessors of a Packet need no further care; Make lays a
// packet out in a buffer for the setters to fill. A Flow computes and checks the ICRC of
// packets between two UDP ports.
//
// Package roce is the main user, the connection manager the other. Nothing here knows
// queue pairs, memory or sockets, and nothing here may panic on what comes from the
// network.
package wire
