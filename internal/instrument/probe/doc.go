// Package probe runs measuring tools with fixed options, each for one number. Rounds runs several probes in turn, several times, so
// that a noisy moment affects all of them:
//
//	round 1: ib_write_bw, iperf3, ib_send_lat, qperf
//	round 2: ib_write_bw, iperf3, ib_send_lat, qperf
//	…
//
// Package drivers builds the tools' commands and parses their output. Packages bench, attack and demo compare the series.
package probe
