// Package policy decides who may talk to whom, from the policies of a world.
//
//	World ── Compile ──▶ Rules ── Guard(NIC) ──▶ what a NIC asks for each of its connections
//	                       └───── Explain ─────▶ `vrdma policy test`: the same answer, and the rule
//
// Two NICs of one network may talk if both ends allow it: the one that asks for the connection
// in the direction out, the other in the direction in. One end decides so:
//
//   - What a deny rule of a policy that is about the NIC matches is refused, or, if the rule
//     names operations, these operations are.
//   - If a policy about the NIC has an allow list that names the direction, only what an allow
//     rule matches is allowed, with the operations that the matching rules name together.
//   - Else the network's default holds.
//
// The types and operations of both NICs bound what is left. Who connects queue pairs by hand asks
// nobody for a connection: then both directions have to be allowed. A NIC always reaches itself.
//
// A decision takes well below a microsecond and allocates nothing:
//
//	address ──▶ NIC ──▶ class: NICs that the same peers of rules match
//	NIC ──▶ profile: NICs that the same policies are about
//	(profile, direction, class) ──▶ cell: service ──▶ operations for each type of queue pair
//
// A cell is made when it is asked for first, so that compiling does not depend on how many pairs
// there are. Networks that did not change keep theirs from world to world.
//
// The package is pure. Package nic declares what it needs of a Guard, and asks it.
package policy
