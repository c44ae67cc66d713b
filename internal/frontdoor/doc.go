// Package frontdoor is where programs come in: the unix socket, the conversations
// on it, and the kernel's uverbs commands answered there.
//
//	program socket                      program socket: of one's own programs
//	shim, package verbs                 control socket: of everybody, stop, pcap
//	   │ PROCESS      │ UVERBS                │ CONTROL      NETLINK: rdma, libibverbs
//	   ▼              ▼                       ▼                   ▼
//	process ──owns── session ── command ──  control             looker (rdmanl)
//	(token, memory)  (arena,    table       (status, trace records)
//	                  doorbell)   │
//	                              ▼
//	                engine.Do ── nic.Session (objects)     device tree (sysfs.go)
//
// A conversation is served by one goroutine. A process lives as long as its PROCESS
// connection and its pid; when either ends, so do its sessions, and with a session
// goes everything it had. Commands are rows of a table (table.go): a decoder, the
// sizes that the kernel checks, a handler. What the table does not name is refused
// with the errno that the kernel gives, and what we know but do not support is
// written down there.
//
// Sizes, masks and handles are checked here as drivers/infiniband/core/uverbs_main.c
// and uverbs_cmd.c check them, and the errno is theirs; the rules of the objects
// themselves are package nic's, reached only on the engine's loop.
//
// A connection is charged to its user before it has said a word (admission.go); who is
// the daemon's owner is more than a number (home.go).
//
// The package must never trust a client: every length is checked against the bytes
// that came, descriptors that a client sends are closed unseen, addresses in
// commands are only handed back as places to store to, and a panic while one
// session is served ends that session alone.
package frontdoor
