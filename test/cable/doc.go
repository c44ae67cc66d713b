// Package cable is an Ethernet cable made of software, for tests: it carries frames
// between two ends and, when told to, loses, doubles, reorders or damages some of them.
//
//	namespace A ── TAP ◀──▶ ┌───────┐ ◀──▶ TAP ── namespace B
//	                        │ Cable │
//	                        └───────┘ ◀──▶ Socket ── QEMU guest (-netdev dgram)
//
// The kernel here has no sch_netem, and a QEMU guest may be had without root only through
// a socket: both are reasons to have the wire in the test's own hands. Faults strike
// RoCEv2 packets only, because the tools tell each other their queue pairs over TCP, whose
// own recovery is not what is under test. They can be changed while traffic flows, and a
// cable can write what it carries to a capture file. With more than two ends it is a hub; a
// Line makes the way to one end slow, with a queue that marks packets as a switch does.
//
// Namespaces have no names and TAP interfaces live as long as their descriptor, so that
// nothing is left behind however a test ends.
//
// Who uses it: vrdma.dev/vrdma/test/wire and vrdma.dev/vrdma/test/guest. What it must never do: touch an
// interface or namespace that it did not make.
package cable
