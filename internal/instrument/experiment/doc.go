// Package experiment holds experiments as data: what is measured, where, how often, and what came
// out. It knows nothing of how a tool is run.
//
//	document (YAML) ──▶ Experiment ──▶ Cells (setting × transport × tool × size × pairs × MTU × wait)
//	                                      │ every round in an order of its own
//	                                      ▼
//	                     Instrument.Measure ──▶ Record ──▶ results.ndjson ──▶ Medians, Compare
//
// An experiment is a list of values for each axis. Of all combinations the cells are those that make
// sense: perftest has no TCP, and iperf3 no verbs. The rounds are interleaved: each runs every cell
// once, in an order that the seed gives, so that a noisy moment hits them all alike.
//
// A record is written when its cell has been measured, and says everything that is needed to do it
// again. A run that fails is a record that says why. What was recorded is not measured again when a
// run is resumed.
//
// Called by internal/instrument/bench, which is the instrument, internal/instrument/report and cmd/vrdma.
package experiment
