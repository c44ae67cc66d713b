// Package transport implements the InfiniBand transport services that vrdma offers as state
// machines: reliable connection (RC), unreliable connection (UC) and unreliable datagram (UD),
// requester and responder. It follows chapter 9 of the InfiniBand specification (IBA volume 1),
// and the Linux kernel's rxe where the specification leaves a choice.
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
// All data passes in bursts. A burst is a run of consecutive packets of one message; how many
// packets it has follows from the path MTU by PSN arithmetic. The wire layer splits a burst into
// packets, and turns received packets into bursts. The result does not depend on the burst size.
//
// # Parts
//
// A QP is a thin wrapper: state, attributes, path, counters and the public calls, which it passes
// on to its two halves. The halves know neither each other nor the QP. They share the fields of
// common, and get everything else with the call (reqCall, respCall).
//
//	QP ─┬─ requester ─┬─ sentRequests   requests in flight
//	    │             ├─ recovery       timers, retries, probes
//	    │             ├─ repair         selective retransmission to vrdma hosts
//	    │             ├─ reassembly     READ data that arrived out of order
//	    │             └─ congestion     the window and the round trip time
//	    ├─ responder ─┬─ message        the SEND or WRITE in progress
//	    │             ├─ resources      READs and atomics, for responses and repeated responses
//	    │             ├─ answers        ACK and NAK that wait for READ responses
//	    │             └─ naks           retransmissions requested; the stash has early packets
//	    ├─ notifier                     CNPs for packets that arrive with an ECN mark
//	    └─ common                       configuration, attributes, path, state, pacer, counters
//
// # Environment
//
// The NIC (internal/device/nic) owns the queue pairs, and the loop (internal/device/engine) calls
// them. A queue pair reaches the rest of the system only through its Env, which consists of a few
// interfaces. The NIC implements the send queue and its memory, the receive queue, the memory that
// the peer addresses, and events. The loop implements Sender.
//
// The code is pure: it has no socket, clock, goroutine or lock. A QP is plain data without
// pointers. So its whole state can be copied, written to a file and restored between any two
// calls, also on a loop with another clock (Freeze, Thaw). Working storage and packets that
// arrived early belong to the loop (Scratch); losing them is harmless.
//
// The caller must do the following:
//
//   - After a doorbell, and when RunPending is true after Receive, Expire or Modify, call Run
//     until it returns false.
//   - When RespondPending is true, call Respond until it returns false.
//   - When Deadline has passed, call Expire.
//   - When Receive did not take a burst, offer that burst again before any other. When the NIC
//     answered Later, call Run and Respond again once the NIC has a result.
//   - In the states Error and SQE, call Flush regularly for work requests posted since.
//   - When the peer is on another host, call SetPath. Set CE in bursts whose packets have the ECN
//     mark, send a burst of KindCNP as a CNP, and call Congested when a CNP arrives.
//
// On a remote path the requester limits data in flight to a window that shrinks with loss and ECN
// marks (congestion.go). It splits READs into pieces that fit the window (flow.go), and detects a
// lost tail before the timeout (recovery.go). If the peer is a vrdma host, it retransmits only lost
// packets (stash.go, repair.go, reassembly.go). A pacer limits unacknowledged traffic (pace.go).
// A peer that is not a vrdma host sees only behaviour that rxe has too.
//
// The package must never:
//   - trust a length, key or offset of a burst before checking it,
//   - read a work request in shared memory (FetchSend and TakeRecv copy it),
//   - write to memory before the whole range of a request is validated,
//   - answer with more packets than the peer requested.
package transport
