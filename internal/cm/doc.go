// Package cm is the InfiniBand connection manager: the exchange of messages on
// queue pair 1 by which two queue pairs on two hosts find each other (IBA volume 1,
// chapter 12).
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
// Either side may answer with REJ instead. Datagrams need one question and one
// answer only: SIDRREQ, SIDRREP.
//
// The Manager is pure: what happens comes in as calls with the time, what is to be
// done goes out through Env, and deadlines are asked for with Deadline. There are
// no sockets, goroutines, clocks or locks inside; everything belongs to one loop.
// Messages may be lost, doubled and delayed: whoever waits for an answer repeats its
// message a bounded number of times and then gives up, so nothing stays for ever.
//
// It knows service identifiers, not ports; addresses, not routes; and it must never
// trust what a peer says: a message counts only if it names a connection that the
// sender's address belongs to.
//
// Called by: rdmacm (ids and events of programs), which the engine drives.
package cm
