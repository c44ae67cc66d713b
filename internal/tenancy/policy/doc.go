// Package policy decides which NICs may talk to which, from the policies of a world.
//
//	World ── Compile ──▶ Rules ── Guard(NIC) ──▶ what a NIC asks for each of its connections
//	                       └───── Explain ─────▶ `vrdma policy test`: the same answer, and the rule
//
// Two NICs of one network may talk if both ends allow it: the initiator in the direction out, its peer in the
// direction in. Each end decides by the policies that select its NIC:
//
//   - A matching deny rule refuses the connection or, if the rule names operations, these operations.
//   - If an allow list names the direction, only what an allow rule matches is allowed, with the union of the operations
//     of the matching rules.
//   - Otherwise the network's default decides.
//
// The types and operations of both NICs bound the result. Queue pairs that a program connects without rdma_cm have no
// initiator: both directions must be allowed. A NIC always reaches itself.
//
// A decision takes well below a microsecond and allocates nothing:
//
//	address ──▶ NIC ──▶ class: NICs that the same peer selectors match
//	NIC ──▶ profile: NICs that the same policies select
//	(profile, direction, class) ──▶ cell: service ──▶ operations for each type of queue pair
//
// Cells are created on first use, so the cost of compiling does not depend on the number of pairs. An unchanged network
// keeps its cells in the next world.
//
// The package is pure. Package nic declares the Guard interface and calls it.
package policy
