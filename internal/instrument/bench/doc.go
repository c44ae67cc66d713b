// Package bench measures the speed table of vrdma: each row compares vrdma with what the same machine does without it, in the
// same run.
//
// A part is a group of rows that are measured together; Table.parts lists them. Most parts have a file of their own (local.go,
// memory.go, connections.go, …). Some consist of several: sockets.go and farsockets.go; network.go and reliability.go;
// waiting.go, sleepers.go, calls.go, armed.go, cgrouprows.go and costs.go; qos.go, tenants.go and applyrows.go.
//
// A part makes its probes (package probe), runs them in rounds, and fills its rows (package speedtable). Package testbed provides
// hosts and daemons. Comparison measures two builds: a Table for each, interleaved measurement by measurement (against.go).
// bench never compares numbers of two runs.
package bench
