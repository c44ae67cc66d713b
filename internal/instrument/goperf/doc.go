// Package goperf measures package verbs as perftest measures libibverbs, and package stream beside
// TCP: two processes of one Go program, the same work in the same order as the C tool does it.
//
//	write-lat, send-lat   ib_write_lat, ib_send_lat (-e: Events)       median and average, in seconds
//	write-bw, send-bw     ib_write_bw, ib_send_bw                      bytes and messages a second
//	echo                  a message to and fro over net.Conn           median and average, in seconds
//	bulk                  one way over net.Conn                        bytes and messages a second
//
// The client prints the two numbers. Called by `vrdma goperf`, which `vrdma bench` runs.
package goperf
