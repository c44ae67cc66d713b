// Package nic is the software NIC. It has the objects of verbs: protection domains, memory
// regions and windows, completion queues, queue pairs, shared receive queues, address handles
// and multicast groups. It also has the keys and numbers that name them, the rights between
// them, and the rings in shared memory through which applications post and poll.
//
//	server ── verbs (CreateQP, RegMR …) ──► Session ── owns ──► objects
//	engine ── doorbells, timers ──► QP ── transport.QP (state machine)
//	                                 │  as transport.NIC: fetch, complete,
//	                                 ▼  gather, scatter, check keys
//	                            rings in the session's arena, registered memory
//
// Every object belongs to one loop, and only that loop accesses it: no locks. An object calls its
// loop through its Owner (owner.go). A Resolver finds the Way to an address (way.go).
//
// A session's objects are named by handles that only that session can use; queue pair
// numbers and memory keys are random and belong to the NIC as a whole, because that is what
// goes on a wire.
//
// A client can overwrite the memory of its rings at any moment. So the code of rings
// reads each shared word once, masks every index, copies a work request before it
// checks it, and keeps its own positions. A hostile client breaks only its own queues.
package nic
