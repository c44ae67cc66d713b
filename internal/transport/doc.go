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
// link that has packets hands over bursts of one; nothing here can tell the difference.
//
// The NIC (internal/nic) owns the queue pairs and calls them; what a queue pair needs
// from the world it asks of its Host. The code is pure: no socket, clock, goroutine,
// lock or closure, and a QP holds no pointer, so its whole state can be copied, written
// to a file and brought back (Freeze, Thaw) between any two calls.
//
// What a caller has to do:
//
//   - After a doorbell, and whenever RunPending says so after Receive, Expire or
//     Modify, call Run until it reports no more.
//   - When RespondPending says so, call Respond until it reports no more.
//   - When Deadline has passed, call Expire.
//   - Offer a burst again that Receive has not taken, before any other. When the host has
//     answered Later, call Run and Respond again when it can say more.
//   - In the states Error and SQE, call Flush now and then for what was posted since.
//   - When the peer is on another host, say so with SetPath. Set CE in bursts whose packets
//     bear that mark, send a burst of KindCNP as a CNP, and call Congested when one comes.
//
// On a remote path the requester keeps to a window that follows loss and marks
// (congestion.go), asks for READs in pieces that fit it (path.go), finds lost tails out
// before the timeout (recovery.go) and, if the peer is one of our own hosts, sends again
// only what was lost (stash.go, repair.go, reads.go). What nobody acknowledges is paced (pace.go).
// A peer that is not one of ours sees nothing that rxe would not do or answer.
//
// What this package must never do: trust a length, key or offset of a burst before it
// was checked, read shared memory (FetchSend copies), write to memory before the whole
// range of a request was validated, or answer with more packets than it was asked for.
package transport
