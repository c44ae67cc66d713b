// Package netlink answers RDMA netlink requests, which a program sends to the kernel over a NETLINK_RDMA socket. libibverbs and
// librdmacm find devices with them, and `rdma` of iproute2 shows them:
//
//	program ── datagram ──► Answer ── queries ──► Source  (package server: what the
//	        ◄─ datagrams ──                              program's user may see)
//
// A datagram contains messages. Each requests one object (a "doit" in the kernel's terms) or all of a kind (a dump), with
// attributes. Commands are rows of a table (answer.go); the attributes of an object are a table too (resources.go). The answers
// are those of the kernel's nldev.c to a process without CAP_NET_ADMIN: memory keys are not shown. Requests that would change the
// device are refused.
//
// The package is pure: no socket, no clock, no goroutine. It never trusts a request: every length is checked against the received
// bytes, and no answer is longer than every reader's buffer.
package netlink
