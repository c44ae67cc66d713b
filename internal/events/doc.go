// Package events defines what the parts of a daemon report and the sink that receives it.
//
//	provision (policy, caps, connections) ─┐
//	server (opens, refusals, limits) ──────┼── Sink.Record ──▶ control.Journal ──▶ vrdma events, log
//	control (objects, hosts, bindings) ────┘
//
// A part fills in an Event and records it. It neither waits for a reader nor learns whether there is one. The engine's loop
// reports too, so a Sink never blocks.
package events
