// Package drivers runs measuring tools and reads their output: perftest, qperf, iperf3, sockperf, NetPIPE, Open MPI, cmtime,
// fio, ibv_devinfo, ibv_rc_pingpong, vrdma cp and the key-value lab. Each tool has a small file.
//
//	Job (a cell, a route, a port) ──▶ Driver.Commands ──▶ argv of server and client
//	output of server and client   ──▶ Driver.Parse    ──▶ ToolResult, in seconds, bytes/s and 1/s
//
// Tools lists the drivers that experiments name. The Run functions run one pair with fixed options; package probe makes its
// probes from them. Every parser has a test with captured output (testdata/) and rejects output without a value.
//
// A driver starts no process by itself: package testbed does.
package drivers
