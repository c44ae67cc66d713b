// Package measure measures one cell of an experiment: it is the Instrument that package experiment asks.
//
//	experiment.Run ──▶ Instrument.Measure(cell)
//	                     ├─ testbed.Environments   where it runs
//	                     ├─ drivers.Tools          what runs
//	                     ├─ runPairs               servers, then clients at the same time; processor time by role
//	                     └─ proof, bound           which device carried the bytes; the limit of link or memory
//
// Pairs of perftest that poll share a common window: only the lines inside of it count (window).
//
// `vrdma bench run` and the agent of a guest call it.
package measure
