// Package cm is the InfiniBand connection manager: the exchange of messages on queue pair 1 by which two queue pairs on two
// hosts connect (IBA volume 1, chapter 12).
//
//	active            wire           passive
//	Connect   ──── REQ ───────────▶  Env.Request      ReqSent │ ReqRcvd
//	          ◀─── (MRA: wait) ────
//	Replied   ◀─── REP ────────────  Accept            RepRcvd │ RepSent
//	Ready     ──── RTU ───────────▶  Established       Established │ Established
//	                  …
//	Disconnect ─── DREQ ──────────▶  Disconnected      DreqSent │ DreqRcvd
//	Disconnected ◀ DREP ───────────  Disconnect        TimeWait │ TimeWait
//
// Either side may answer with REJ instead. Datagram services need only one request and one reply: SIDRREQ, SIDRREP.
//
// The Manager is pure: events come in as calls with the time, actions go out through Env, and Deadline returns the next deadline.
// It has no sockets, goroutines, clocks or locks; everything belongs to one loop. Messages may be lost, duplicated and delayed. A
// side that waits for an answer repeats its message a limited number of times and then gives up, so no state stays forever.
//
// It knows service IDs, not ports; addresses, not routes. It must never trust a peer: a message counts only if it names a connection
// with the sender's address.
//
// Package rdmacm (identifiers and events of programs) calls it; the engine drives rdmacm.
package cm
