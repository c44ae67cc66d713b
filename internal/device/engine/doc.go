// Package engine drives NICs: one loop that turns doorbells into work, work into
// bursts, bursts into copies and completions, and deadlines into retries.
//
//	doorbells ──────┐                        ┌─► peer of this daemon (one copy)
//	commands ───────┼─► scheduler ─► QP.Run ─┤
//	timers ─────────┤      ▲                 ├─► acknowledgements ─► requester
//	network ────────┘      │                 └─► network ─► other hosts
//	                       └───────── whoever has more to do
//
// An Engine is one loop and the parts that it is made of, each a type of its own:
//
//	lines        connections of clients: requests are read and run here (lines.go)
//	commands     what other goroutines want done, and who may touch what (commands.go, standin.go)
//	doorbells    who has posted something (doorbell.go); clients that sleep while they poll are
//	             told where the loop runs, and woken (waiters.go)
//	scheduler    who has the next turn, and when timers are due (scheduler.go, timers.go)
//	local        bursts between queue pairs of this daemon (local.go, inbox.go, starved.go)
//	network      bursts to and from other hosts (network.go and what it names)
//	management   queue pair 1 (management.go)
//	adapters        the NICs that are served, and where addresses lead (adapter.go)
//	contention, placement  when to go to another processor (contention.go, placement.go)
//
// loop.go is the loop and one pass of it, turn.go what a queue pair does in its turn, task.go
// the loop's records of sessions and queue pairs, panics.go what a panic means.
//
// The loop owns every object of the NICs that it serves; nothing there is locked. It reads
// the requests of clients itself; other goroutines hand it functions with Do. It runs on a thread of its own. Nothing is kept in
// variables of the package, and objects are reached through their owner (nic.Owner): several
// loops can stand beside each other, and what one would have to ask of another goes through
// one function each (see nic/owner.go).
//
// Fairness: turns go round users, their sessions, and a session's queue pairs, and move
// a bounded number of bytes (scheduler.go). One pass of the loop is bounded in everything
// it does: turns, by number and time; doorbells, timers, commands, packets, visits of what
// rings no bell. What is left waits for the next pass. So a session with very many queue
// pairs delays itself.
//
// Cost: only sessions that rang lately are polled; the others are armed and wake the loop
// through an eventfd, so a thousand idle queue pairs cost nothing, and neither do a thousand
// idle NICs. When nothing at all is active the loop looks around for a moment, because a
// reply usually follows, at first alone and then yielding, and then sleeps until a doorbell,
// a packet, a command or the next deadline.
//
// The engine must never block on a client. Memory that could block it is fetched by others;
// what arrives meanwhile waits in an inbox (inbox.go).
package engine
