// Package wire defines the formats of RoCEv2: the content of a UDP datagram to port 4791, byte for
// byte as the Linux kernel's rxe and hardware NICs send it (IBA volume 1, chapter 9 and annex A17).
// It also defines the management datagrams (MADs) of the connection manager (chapters 12 and 13).
// Two formats are extensions between vrdma hosts: the MAD by which they recognise each other
// (hello.go), and filler bytes that make all packets of a message equally long (filler.go).
//
//	┌──────────┬─────┬─────┬──────────────────────────┬─────────┬─────┬──────┐
//	│ IPv4 or  │ UDP │ BTH │ DETH, RETH, AtomicETH,   │ payload │ pad │ ICRC │
//	│ IPv6     │     │     │ AETH, ImmDt, … by opcode │         │     │      │
//	└──────────┴─────┴─────┴──────────────────────────┴─────────┴─────┴──────┘
//	                  └────────────────── Packet ─────────────────────────┘
//
// A header is a named byte slice with a getter and a setter per field; nothing here allocates. The
// table in opcode.go lists the headers of each opcode. Parse checks all lengths, so that the
// accessors of a Packet need no further checks. Make writes the fixed fields of a packet into a
// buffer, and the setters fill in the rest. A Flow computes and checks the ICRC of packets between
// two UDP ports.
//
// Package roce and the connection manager use this package. It does not know queue pairs, memory or
// sockets. It must not panic on any input from the network.
package wire
