// Package peers determines which other hosts are vrdma hosts. vrdma uses its extensions, which rxe and hardware NICs do not
// understand, only towards hosts that have answered a question (a hello).
//
//	A: a queue pair gets an address at B                  B
//	  │ Get      nonce a                                  │
//	  ├──────────────────────────────────────────────────▶│ answers every host, one answer per
//	  │                GetResp  nonce a, challenge b      │ question, at a limited rate
//	  │◀──────────────────────────────────────────────────┤
//	  │ B is a vrdma host                                 │
//	  │ GetResp  nonce b                                  │
//	  ├──────────────────────────────────────────────────▶│ A is a vrdma host
//
// The messages are wire.Hello on queue pair 1. An answer counts if it comes from the address that was asked and has the nonce
// that was sent there, once and soon. B adds a challenge only if it talks with A and does not know it yet. So no address
// receives more than it sent, and forging a question is useless.
//
//	         answer                    silence, refusal, or not in use
//	Asking ─────────▶ Own ── asked again regularly ─────▶ Foreign ── asked again, rarely ─┐
//	   ▲ └─── silence, refusal ──────────────────────────────▲──────────────────────────┘
//	   └── a queue pair gets an address there
//
// Another system may replace a vrdma host at its address. The table notices that when the system refuses, does not answer, or
// sends a packet that no vrdma host sends (Doubt). A new connection to a host without a recent answer treats it as foreign until it
// answers again. The transport works even if the two sides disagree about each other.
//
// The code is pure: time and randomness come from the caller, and output goes to its Env. It belongs to one loop.
package peers
