// Package cable is an Ethernet cable in software, for tests. It carries frames between two ends. On request it loses,
// duplicates, reorders or damages some of them.
//
//	namespace A ── TAP ◀──▶ ┌───────┐ ◀──▶ TAP ── namespace B
//	                        │ Cable │
//	                        └───────┘ ◀──▶ Socket ── QEMU guest (-netdev dgram)
//
// The test carries the frames itself for two reasons: the kernel may lack sch_netem, and without root a QEMU guest
// can only be connected through a socket. Faults apply to RoCEv2 packets only, because the tools exchange their queue
// pair numbers over TCP, whose recovery is not under test. Faults can change while traffic flows, and a cable can write
// its frames to a capture file. With more than two ends it is a hub. A Bottleneck makes the path to one end slow, with a
// queue that marks packets as a switch does.
//
// Namespaces have no names and TAP interfaces live as long as their descriptor, so that
// nothing is left behind however a test ends.
//
// Who uses it: vrdma.dev/vrdma/test/wire and vrdma.dev/vrdma/test/guest. What it must never do: touch an
// interface or namespace that it did not make.
package cable
