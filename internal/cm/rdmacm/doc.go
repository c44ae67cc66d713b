// Package rdmacm implements the rdma_cm device: the identifiers, port spaces and events through which programs use the connection
// manager (the kernel's drivers/infiniband/core/cma.c and ucma.c).
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
// IDs and channels belong to a client, which names them by its own numbers; it cannot reach those of other clients. Everything here runs
// on the engine's loop without locks. The program manages its queue pairs: the device only returns the attributes to set (qpattr.go), as
// the kernel does.
//
// Another process can continue a device and its clients from their state (state.go, freeze.go, thaw.go). An address resolution under
// way is part of the state, and package ucma starts it again.
//
// Package server (commands) and the engine (MADs and deadlines, through CMA) call it.
package rdmacm
