// Package bench measures vrdma with the tools that people cite, next to what the
// same machine does without it, in the same run.
//
//	probe ─ one tool run once, one number ─┐
//	probe ─ …                              ├─ rounds: every probe in turn, again and again,
//	probe ─ …                              ┘  so that a noisy moment hits them all alike
//	                  │
//	series (all numbers of a probe) ─► row (a median against a target) ─► table, JSON
//
// Drivers of tools are one small file each: perftest.go, qperf.go; programs/ holds
// the baselines that no tool gives: a cold memcpy, a bare ring in shared memory.
//
// Called by `vrdma bench` and `vrdma demo`. It must never compare numbers of two
// runs, and never leave a process behind.
package bench
