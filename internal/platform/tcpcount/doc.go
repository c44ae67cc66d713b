// Package tcpcount counts the connections of a program under vrdma run --sockets that did not use RDMA. The preload library
// shim/sockets counts in memory that it shares with vrdma.
package tcpcount
