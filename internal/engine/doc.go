// Package engine drives the NIC: one loop that turns doorbells into work, work into
// bursts, bursts into copies and completions, and deadlines into retries.
//
//	doorbell pages ─┐                        ┌─► peer's Receive (one copy)
//	commands (Do) ──┼─► scheduler ─► QP.Run ─┤
//	timers ─────────┤      ▲                 ├─► acknowledgements ─► requester
//	network ────────┘      │                 └─► link.Port ─► other hosts
//	                       └───────── whoever has more to do
//
// The loop owns every object of package nic; nothing there is locked. Other
// goroutines hand it functions with Do, which runs them in the place of a loop that
// sleeps (visit.go). It runs on a thread of its own.
//
// Fairness: turns go round users, their sessions, and a session's queue pairs, and move
// a bounded number of bytes (scheduler.go). One pass of the loop is bounded in everything
// it does: turns, by number and time; doorbells, timers, commands, packets, visits of what
// rings no bell. What is left waits for the next pass. So a session with very many queue
// pairs delays itself.
//
// Cost: only sessions that rang lately are polled; the others are armed and wake the loop
// through an eventfd, so a thousand idle queue pairs cost nothing. When nothing at
// all is active the loop looks around for a moment, because a reply usually follows, at
// first alone and then yielding, and then sleeps until a doorbell, a packet, a command
// or the next deadline.
//
// The engine must never block on a client, and a fault in one client's memory ends
// that client's session only. Memory that could block it is fetched by others; what
// arrives meanwhile waits in an inbox (inbox.go).
package engine
