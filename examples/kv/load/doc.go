// Package load makes work for a store and measures it: which keys, how many of the operations are
// updates, how many clients, for how long; then operations a second, latency percentiles and the
// processor time of everybody who took part.
//
//	Spec ──▶ Run ── a goroutine for each client ──▶ store
//	          └──▶ Result
//
// The mixes are those of YCSB: A is half reads and half updates, B 95 % reads, C reads only. Keys are
// uniform, or zipfian as YCSB has them: the k-th most popular of n keys is asked for in proportion to
// 1/k^0.99.
//
// Every value says which key it was made for, and is checked when it comes back.
package load
