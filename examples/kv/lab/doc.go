// Package lab is the key-value experiment: it starts a server, or finds one, has clients read and update
// it in several ways, and prints a table of what that cost whom. The programs kv and `vrdma lab` are thin
// around it.
//
// The server is a process of its own, so that its processor time can be told from the clients'. The
// daemon's is beside them: without hardware the daemon is the NIC, and does in software what a NIC does
// for nothing.
package lab
