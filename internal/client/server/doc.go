// Package server is where programs come in: doors, the conversations there, and the
// processes and sessions that these are about.
//
//	a door: program socket, one vNIC    control socket
//	   │ PROCESS     │ UVERBS, RDMACM      │ CONTROL (at a door: of one's own programs)
//	   ▼             ▼                     │         NETLINK: rdma, libibverbs
//	process ──owns── session, cmSession    ▼            ▼
//	(token, memory)  (arena, doorbell)    diag.Service, diag.Looker
//	                   │
//	            uverbs, ucma: the kernel's commands
//	                   ▼
//	   on the loop: nic.Session, rdmacm.Channel
//
// A Door is a socket with one virtual NIC behind it. A session reaches device, connection
// manager, routes and device tree through its registry.NIC; nothing here knows another.
//
// Each conversation has a goroutine. Requests of a session are read by the loop, which runs
// most of them, too; the session's goroutine does what would hold the loop up (requests.go).
// A process lives as long as its PROCESS connection and its pid; when either ends, so do its
// sessions, and with a session goes everything it had.
//
// A connection is charged to its user before it has said a word (admission.go); who is
// the daemon's owner is more than a number (package credentials).
//
// The package must never trust a client: every length is checked against the bytes
// that came, descriptors that a client sends are closed unseen (and never on the loop: to
// close one may take long), addresses in commands are only handed back as places to store
// to, and a panic while one session is served ends that session alone.
package server
