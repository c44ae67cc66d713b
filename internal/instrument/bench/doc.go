// Package bench measures vrdma with the tools that people cite, next to what the
// same machine does without it, in the same run.
//
//	probe ─ one tool run once, one number ─┐
//	probe ─ …                              ├─ rounds: every probe in turn, again and again,
//	probe ─ …                              ┘  so that a noisy moment hits them all alike
//	                  │
//	series (all numbers of a probe) ─► row (a median against a target) ─► table, JSON
//
// Two builds are compared by running a Table for each, measurement by measurement
// (against.go; the verdict is in compare.go).
//
// What hostile tenants do to a victim and to the daemon is measured by attacks.go, with
// programs/hostile.c as the attacker and load.go to look at the daemon.
//
// A tool runs on a Route, from one Host to another: both this machine, or two network
// namespaces with a Wire between them. Drivers of tools are one small file each
// (perftest.go, qperf.go, iperf3.go, …); programs/ holds what no tool gives: a cold
// memcpy, a bare ring in shared memory, queue pairs that do nothing. The table's parts
// are local.go, memory.go, connections.go, sockets.go, gopair.go, network.go, waiting.go, guest.go, rxe.go,
// allocations.go, boxes.go (containers). Some are made of pieces: farsockets.go (sockets), reliability.go
// (network), sleepers.go, calls.go, armed.go, apart.go and costs.go (waiting).
//
// Experiments (internal/instrument/experiment) are measured by instrument.go: a cell is a tool of drivers.go on a
// Route, with processor time by role (pairs.go) and a proof of what carried the bytes.
//
// Called by `vrdma bench` and `vrdma demo`. It must never compare numbers of two
// runs, and never leave a process, a namespace or a virtual machine behind.
package bench
