// Package fault decides which packets, messages and calls of a device fail on purpose, so that people can test their
// programs.
//
//	SPEC ── Parse ──▶ Rule ── New ──▶ Plan ── Decide(now, flow, packet) ──▶ Verdict
//	                                    ├──── Call(now, CallRegMR …) ─────▶ hit, delay
//	                                    └──── Due(now) ───────────────────▶ device-fatal, port-down, gid-change, suspend
//
// A Rule is what a user writes: one action, and selectors that say what it hits. A Plan is a list of rules with their
// counters. A NIC has a Plan for its declared Faults, and a process has one for the rules that it was started with
// (vrdma run --fault). The engine asks it for each packet, package nic for registrations and completions, package
// rdmacm for connections. Without a Plan they ask nothing.
//
// The package is pure: time is an argument, and a Plan does nothing but count and call Report. Chance is a hash of the
// rule's seed, the flow's number and the packet's number in the flow. It does not depend on other flows, on time or on
// how packets are combined into bursts, so that the same seed and the same traffic have the same faults.
//
// A Plan belongs to one loop.
package fault
