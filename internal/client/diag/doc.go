// Package diag answers those who look at a daemon: tools (status, trace, capture,
// counts) and programs that ask over netlink what there is.
//
//	tool ── Desk.Serve ──┬── status    what there is, of whom
//	                     ├── trace     the Hub: commands as they are answered
//	                     ├── capture   every packet, to one tool at a time
//	                     └── count     connections of a label
//	rdma ── Looker ──────────          the same objects in netlink's words
//	device tree ── Desk.Counters
//
// Who looks has a View: what is not of its own user is not in it, unless the view is the
// owner's. Everything is read on the loop, and looking is bounded to a share of it
// (throttle.go), so that nobody who looks slows those who work.
//
// The package holds no client and no socket: the server hands it the connections, and
// tells it, through Clients, who is being served.
package diag
