// Package diag answers queries about a daemon: from tools (status, trace, capture, counts), and from programs over netlink.
//
//	tool ── Service.Serve ──┬── status    objects and their owners
//	                     ├── trace     the Hub: commands as they are answered
//	                     ├── capture   every packet, to one tool at a time
//	                     └── count     connections of a label
//	rdma ── Looker ──────────          the same objects in netlink format
//	sysfs tree ── Service.Counters
//
// Each query has a View: it contains only objects of the caller's user, unless the caller is the owner. Everything is read on the
// loop. Queries get a limited share of the loop's time (throttle.go), so that they do not slow down programs.
//
// The package has no clients and no sockets: package server passes the connections to it, and describes the served programs
// through Clients.
package diag
