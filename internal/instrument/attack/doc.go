// Package attack measures the latency of a well-behaved program, the victim, alone and beside a hostile tenant of the same daemon. It
// also reads the daemon's memory, mappings and descriptors before, during and after the attack. programs/hostile.c of package testbed
// is the attacker; `vrdma bench --attacks` runs it.
package attack
