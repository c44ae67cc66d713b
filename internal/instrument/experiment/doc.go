// Package experiment holds experiments and their results as data. It does not know how a tool runs.
//
//	document (YAML) ──▶ Experiment ──▶ Cells (setting × transport × tool × size × pairs × MTU × wait)
//	                                      │ every round in an order of its own
//	                                      ▼
//	                     Instrument.Measure ──▶ Record ──▶ results.ndjson ──▶ Medians, Compare
//
// An experiment has a list of values for each axis. Its cells are the meaningful combinations: perftest has no TCP, iperf3 no
// verbs. Rounds are interleaved: each runs every cell once, in an order that the seed determines, so that a noisy moment
// affects all cells.
//
// A record is written when its cell has been measured, and has everything that is needed to repeat the run. A run that fails is
// a record with the reason. A resumed run does not measure recorded cells again.
//
// Package measure implements Instrument. Packages bench, drivers, testbed and report, and cmd/vrdma use it.
package experiment
