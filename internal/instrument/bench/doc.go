// Package bench measures the speed table of vrdma: each row compares vrdma with what the same machine does without it, in the
// same run.
//
//	probe: one tool, run once, one number ─┐
//	probe                                  ├─ rounds: every probe in turn, several times,
//	probe                                  ┘  so that a noisy moment affects all of them
//	                  │
//	series (all numbers of a probe) ─► row (a median against a bound) ─► table, JSON
//
// A part is a group of rows that are measured together; Table.parts lists them. Most parts have a file of their own (local.go,
// memory.go, connections.go, …). Some consist of several: sockets.go and farsockets.go; network.go and reliability.go;
// waiting.go, sleepers.go, calls.go, armed.go, cgrouprows.go and costs.go; qos.go, tenants.go and applyrows.go.
//
// Comparison compares two builds: a Table for each, interleaved measurement by measurement (against.go, compare.go).
// AttackRun measures a victim beside a hostile tenant (attacks.go). Demo prints a short comparison for `vrdma demo`.
//
// Package testbed provides hosts and daemons, package drivers runs the tools. bench never compares numbers of two runs.
package bench
