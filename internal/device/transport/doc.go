// Package transport holds the state machines of the InfiniBand transport services
// that vrdma offers: reliable connection (RC), unreliable connection (UC) and
// unreliable datagram (UD), requester and responder, as chapter 9 of the InfiniBand
// specification (IBA volume 1) has them, and as the Linux kernel's rxe does where the
// specification leaves a choice.
//
//	work requests            packets of the peer's requests
//	FetchSend │                  │ Receive
//	          ▼                  ▼
//	      requester          responder ── ScatterRecv, WriteRemote, Atomic ─▶ memory
//	       │    ▲             │    │
//	  Send │    │ Receive     │    └── CompleteRecv ─▶ completion queue
//	       ▼    │             ▼
//	     requests responses  Send: ACK, NAK, READ and atomic responses
//	       (to the peer's responder; from it)
//
// Everything passes in bursts: runs of consecutive packets of one message, cut from it
// at the path MTU in PSN arithmetic only. A link that needs packets cuts a burst up, a
// link that has packets hands over bursts of one. Both give the same result.
//
// # Parts
//
// A QP is the thin whole: state, attributes, path, counters and the public calls, which it
// passes on to its halves. The halves do not know each other, nor the QP: what they share is
// in common, and what else they need comes with the call (reqCall, respCall).
//
//	QP ─┬─ requester ─┬─ sentRequests   what is in flight
//	    │             ├─ recovery       timers, retries, probes
//	    │             ├─ repair         packets that our own hosts miss
//	    │             ├─ reassembly     READ data that came out of order
//	    │             └─ congestion     the window and the round trip time
//	    ├─ responder ─┬─ message        the SEND or WRITE in progress
//	    │             ├─ resources      READs and atomics, to answer and to answer again
//	    │             ├─ answers        ACK and NAK that wait for READ responses
//	    │             └─ naks           what was asked for; the stash has what came early
//	    ├─ notifier                     CNPs for packets that arrive marked
//	    └─ common                       configuration, attributes, path, state, pacer, counters
//
// # Around it
//
// The NIC (internal/device/nic) owns the queue pairs, and the loop (internal/device/engine) calls them. What
// a queue pair needs from the world it asks of its Env, which consists of a few interfaces:
// send queue and its memory, receive queue, memory that the peer names and events are the
// NIC's, Sender is the loop's. The code is pure: no socket, clock, goroutine or lock. A QP is
// plain data without a pointer, so its whole state can be copied, written to a file and brought
// back between any two calls, on a loop with another clock too (Freeze, Thaw). Working storage,
// and packets that arrived too early, belong to the loop (Scratch) and may be lost.
//
// What a caller has to do:
//
//   - After a doorbell, and whenever RunPending says so after Receive, Expire or
//     Modify, call Run until it reports no more.
//   - When RespondPending says so, call Respond until it reports no more.
//   - When Deadline has passed, call Expire.
//   - Offer a burst again that Receive has not taken, before any other. When the NIC has
//     answered Later, call Run and Respond again when it can say more.
//   - In the states Error and SQE, call Flush now and then for what was posted since.
//   - When the peer is on another host, say so with SetPath. Set CE in bursts whose packets
//     bear that mark, send a burst of KindCNP as a CNP, and call Congested when one comes.
//
// On a remote path the requester keeps to a window that follows loss and marks
// (congestion.go), asks for READs in pieces that fit it (flow.go), finds lost tails out
// before the timeout (recovery.go) and, if the peer is one of our own hosts, sends again
// only what was lost (stash.go, repair.go, reassembly.go). What nobody acknowledges is paced
// (pace.go). A peer that is not one of ours sees nothing that rxe would not do or answer.
//
// What this package must never do: trust a length, key or offset of a burst before it
// was checked, look at a work request in shared memory (FetchSend and TakeRecv copy it),
// write to memory before the whole range of a request was validated, or answer with more
// packets than it was asked for.
package transport
