// Package simnet is a simulated network and NIC for testing the transport: queue
// pairs on nodes with memory of their own, connected by a link that delivers bursts
// or packets late, twice, out of order or not at all. Time is virtual and every choice
// comes from one seed, so a failure can be run again from its number.
//
//	Endpoint (rings, completions, a transport.QP) ── Host.Send ─▶ Net ─▶ Endpoint
//	    │                                                          │
//	   Node (memory, keys)                        loss, copies, delay, a line of limited
//	                                              rate with a queue, marks; virtual time
//
// With Config.Local it behaves like the link inside one host instead: requests and
// READ responses are delivered inside Send, acknowledgements after the caller's turn.
//
// NewHost makes a host with several loops, each with a goroutine of its own, between which queue pairs move (loops.go).
//
// Tests of the transport and of what stands on it use it; nothing else may.
package simnet
