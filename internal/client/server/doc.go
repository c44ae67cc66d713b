// Package server serves programs: their connections at listeners, and the processes and sessions behind these
// connections.
//
//	a listener: program socket, one vNIC   control socket
//	   │ PROCESS     │ UVERBS, RDMACM        │ CONTROL (at a listener: about the caller's own programs)
//	   ▼             ▼                       │         NETLINK: rdma, libibverbs
//	process ──owns── session, cmSession      ▼            ▼
//	(token, memory)  (arena, doorbell)      diag.Service, diag.Looker
//	                   │
//	            uverbs, ucma: the kernel's commands
//	                   ▼
//	   on the loop: nic.Session, rdmacm.Channel
//
// A Listener is a socket with one virtual NIC behind it. A session reaches device, connection manager, routes and
// device tree through its registry.NIC, and no other NIC.
//
// Each connection has a goroutine. The loop reads the requests of a session and runs most of them. The session's
// goroutine runs those that would block the loop (requests.go). A process lives as long as its PROCESS connection and
// its pid. When either ends, its sessions end, and every object of a session with it.
//
// A connection is charged to its user before its first message (admission.go). The daemon's owner is recognised by more
// than the uid (package credentials).
//
// The package never trusts a client. It checks every length against the received bytes. It closes descriptors that a
// client sends without using them, and never on the loop, because closing may take long. Addresses in commands are only
// returned to the client as locations to store to. A panic in one session ends that session alone.
package server
