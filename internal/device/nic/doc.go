// Package nic is the software NIC: its objects (protection domains, memory regions
// and windows, completion queues, queue pairs, shared receive queues, address
// handles, multicast groups), the keys and numbers that name them, the rights
// between them, and the rings in shared memory through which applications post and
// poll.
//
//	server ── verbs (CreateQP, RegMR …) ──► Session ── owns ──► objects
//	engine ── doorbells, timers ──► QP ── transport.QP (state machine)
//	                                 │  as transport.NIC: fetch, complete,
//	                                 ▼  gather, scatter, check keys
//	                            rings in the session's arena, registered memory
//
// Every object belongs to one loop, and only that loop touches it: no locks. What an object
// wants of its loop it asks of its owner (owner.go). Where an address leads to is asked of a
// Resolver (way.go).
//
// A session's objects are named by handles that only that session can use; queue pair
// numbers and memory keys are random and belong to the NIC as a whole, because that is what
// goes on a wire.
//
// Rings live in memory that a client can scribble on at any moment. Their code
// reads each shared word once, masks every index, copies a work request before it
// looks at it, and keeps its own positions; what a hostile client breaks is its own
// queue.
package nic
