// Package peers tells which other hosts are vrdma hosts. What rxe or a NIC would not understand is
// used only towards hosts that have said, in answer to a question of ours, that they do.
//
//	A: a queue pair gets an address at B                  B
//	  │ Get      nonce a                                  │
//	  ├──────────────────────────────────────────────────▶│ answers anybody, one for one,
//	  │                GetResp  nonce a, challenge b      │ so many a second
//	  │◀──────────────────────────────────────────────────┤
//	  │ B is ours                                         │
//	  │ GetResp  nonce b                                  │
//	  ├──────────────────────────────────────────────────▶│ A is ours
//
// The messages are wire.Hello on queue pair 1. An answer counts if it comes from the
// address that was asked and has the nonce that was sent there, once and soon. The
// challenge is there only if B has a use for A and does not know it yet; so nobody is sent
// more than was heard from that address, and a forged question gains its sender nothing.
//
//	         answer                    silence, refusal, or nobody uses it any more
//	Asking ─────────▶ Own ── asked again now and then ──▶ Foreign ── asked again, rarely ─┐
//	   ▲ └─── silence, refusal ──────────────────────────────▲──────────────────────────┘
//	   └── a queue pair gets an address there
//
// A host that was ours and comes back as something else is noticed when it refuses, when it
// is silent, or when a packet comes that no vrdma host would send (Doubt). Whoever connects
// to a host that has not been heard of for a few seconds takes it for a foreign one until
// it has answered again. The transport stands a peer that thinks otherwise of it.
//
// The code is pure: time and randomness come from the caller, and what it has to say goes
// to its Env. It belongs to one loop.
package peers
