// Package engine drives NICs: loops that turn doorbells into work, work into bursts, bursts into
// copies and completions, and deadlines into retries.
//
//	doorbells ──────┐                        ┌─► peer of this daemon (one copy)
//	commands ───────┼─► scheduler ─► QP.Run ─┤
//	timers ─────────┤      ▲                 ├─► acknowledgements ─► requester
//	network ────────┘      │                 └─► network ─► other hosts
//	                       └───────── queue pairs with more to do
//
// An Engine is the public interface of one or several loops. Package-wide, loops is what they have in
// common: which sessions are on which loop, and what the first loop does while it holds the others
// (loops.go, balance.go, steering.go, tenants.go). A loop is a thread and its parts. Each part is a type
// with the methods that work on it, and holds references to the parts that it uses (loop.connect):
//
//	clock        time, and which NIC it is charged to (account.go)
//	adapters     the NICs that are served, their addresses, routes (adapter.go)
//	doorbells    sessions that have posted something (doorbell.go)
//	handlerSet   client connections and mailboxes: requests run here (handlers.go, mailboxes.go)
//	commands     functions of other goroutines, and which goroutine holds the loop's state
//	             (commands.go, standin.go)
//	scheduler    which queue pair has the next turn, timers, shares and caps (scheduler.go,
//	             timers.go, caps.go)
//	task         a queue pair: its turn, its bursts, its inbox (task.go, turn.go, local.go, inbox.go)
//	local        bursts between queue pairs of this daemon (local.go, inbox.go, starved.go)
//	network      bursts to and from other hosts, groups, namespaces (network.go and the files that
//	             it names, underlay.go, namespaces.go)
//	frames       Ethernet frames of virtual machines to other hosts (frames.go)
//	management   queue pair 1 (management.go)
//	processor    when the loop yields, naps, or moves to another CPU (processor.go)
//	waiters      programs that sleep while they poll (waiters.go)
//	eventSender  completion events while NICs of class latency are active (prompt.go)
//	crossing     bursts that other loops have received for this one (crossing.go)
//	chores       periodic work (loop.go)
//
// loop.go is the loop and one pass of it, turn.go a queue pair's turn, panics.go what a panic means.
//
// The loop owns every object of the NICs that it serves; nothing there is locked. It reads the
// requests of clients itself; other goroutines give it functions with Do. It runs on a thread of its
// own. The package has no variables that change, and objects are reached through their owner
// (nic.Owner). Several loops run beside each other and share nothing on the data path; commands run while
// all but the first stand still (loops.go).
//
// Fairness: turns go round users, their sessions, and a session's queue pairs, and move a bounded
// number of bytes (scheduler.go). One pass of the loop is bounded in everything it does: turns, by
// number and time; doorbells, timers, commands, packets, visits of what rings no doorbell. The rest
// waits for the next pass. A session with very many queue pairs therefore delays itself.
//
// Cost: the loop polls only sessions that rang lately. The others are armed and wake the loop through
// an eventfd. A thousand idle queue pairs cost nothing, and neither do a thousand idle NICs. When no
// session is active, the loop polls for a moment, because a reply usually follows: at first without
// yielding, then yielding. Then it sleeps until a doorbell, a packet, a command or the next deadline.
//
// The engine must never block on a client. Threads beside the loop fetch memory that could block it;
// bursts that arrive meanwhile wait in an inbox (inbox.go).
package engine
