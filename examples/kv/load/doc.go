// Package load generates load for a store and measures it. A Spec has the distribution of keys, the share of
// updates, and the number of clients and operations. A Result has operations per second, latency percentiles
// and the processor time of all processes.
//
//	Spec ──▶ Run ── a goroutine for each client ──▶ store
//	          └──▶ Result
//
// The mixes are those of YCSB: A is half reads and half updates, B 95 % reads, C reads only. Keys are
// uniform, or zipfian as in YCSB: the k-th most popular key is requested in proportion to 1/k^0.99.
//
// Every value contains its key, and is checked when it is read.
package load
