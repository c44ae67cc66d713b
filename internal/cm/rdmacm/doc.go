// Package rdmacm is the rdma_cm device behind its ABI: the identifiers, port spaces
// and events through which programs use the connection manager (the kernel's
// drivers/infiniband/core/cma.c and ucma.c).
//
//	process ── Client ──┬─ Channel ── events ──▶ descriptor, readable while there are any
//	                    └─ ID ──┬─ port (of a port space)
//	                            ├─ addresses, route
//	                            └─ cm.Conn ── REQ, REP, RTU … on queue pair 1
//
// An ID goes through the states of the kernel's rdma_cm_id:
//
//	Idle ─ bind ─▶ Bound ─ listen ─▶ Listening ─ REQ ─▶ (a new ID) Connecting
//	  └─ resolve address ─▶ Resolved ─ resolve route ─▶ Routed ─ connect ─▶ Connecting
//	                                                         Connecting ─▶ Disconnected
//
// IDs and channels belong to a client and are named by numbers of its own; a client
// can reach nobody else's. Everything here runs on the engine's loop and is not
// locked. Queue pairs are the program's business: the device only tells it the
// attributes to set (qpattr.go), as the kernel does.
//
// Called by: server (commands), engine (MADs and deadlines, through CMA).
package rdmacm
