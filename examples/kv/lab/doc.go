// Package lab is the key-value experiment. It starts or finds a server, lets clients read and update it in several
// ways, and prints a table of rates, latencies and processor time. The programs kv and `vrdma lab` call it.
//
// The server is a separate process, so that its processor time can be distinguished from the clients'. The
// daemon's time is listed too: without hardware the daemon is the NIC.
package lab
